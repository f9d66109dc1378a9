"""Values in Kubernetes' own form, as JSON Schema: the keys of each are named, so that a misspelt one is refused by `helm` already. What lies
below a key without a type is left to Kubernetes."""


def closed(required=(), **keys):
    return {"type": "object", "additionalProperties": False, "properties": keys, **({"required": list(required)} if required else {})}


def named(names, required=()):
    """An object with these keys, of any type."""
    return closed(required, **{name: {} for name in names.split()})


def list_of(items):
    return {"type": "array", "items": items}


TEXT, FLAG, ID = {"type": "string"}, {"type": "boolean"}, {"type": "integer", "minimum": 0}
AMOUNTS = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
PROFILE = closed(type=TEXT, localhostProfile=TEXT)
EITHER = {"runAsUser": ID, "runAsGroup": ID, "runAsNonRoot": FLAG, "appArmorProfile": PROFILE, "seccompProfile": PROFILE,
          "seLinuxOptions": closed(level=TEXT, role=TEXT, type=TEXT, user=TEXT),
          "windowsOptions": closed(gmsaCredentialSpec=TEXT, gmsaCredentialSpecName=TEXT, hostProcess=FLAG, runAsUserName=TEXT)}
PEER = named("ipBlock namespaceSelector podSelector")
CONTAINER = named("name image imagePullPolicy command args workingDir env envFrom ports resources resizePolicy restartPolicy restartPolicyRules "
                  "volumeMounts volumeDevices lifecycle startupProbe readinessProbe livenessProbe securityContext stdin stdinOnce tty "
                  "terminationMessagePath terminationMessagePolicy", ("name", "image"))
VOLUME = named("name emptyDir configMap secret projected downwardAPI persistentVolumeClaim ephemeral csi hostPath image nfs iscsi fc cephfs rbd "
               "cinder azureDisk azureFile awsElasticBlockStore gcePersistentDisk vsphereVolume portworxVolume photonPersistentDisk quobyte "
               "scaleIO storageos flexVolume flocker glusterfs gitRepo", ("name",))
RELABELING = named("action sourceLabels separator regex modulus replacement targetLabel")

# By the path of the value.
FORMS = {
    "updateStrategy": named("type rollingUpdate"),
    "resources": closed(requests=AMOUNTS, limits=AMOUNTS, claims=list_of(closed(name=TEXT, request=TEXT))),
    "podSecurityContext": closed(**EITHER, fsGroup=ID, fsGroupChangePolicy=TEXT, supplementalGroups=list_of(ID), supplementalGroupsPolicy=TEXT,
                                 seLinuxChangePolicy=TEXT, sysctls=list_of(closed(name=TEXT, value=TEXT))),
    "securityContext": closed(**EITHER, allowPrivilegeEscalation=FLAG, capabilities=closed(add=list_of(TEXT), drop=list_of(TEXT)), privileged=FLAG,
                              procMount=TEXT, readOnlyRootFilesystem=FLAG),
    "affinity": named("nodeAffinity podAffinity podAntiAffinity"),
    "tolerations": list_of(named("key operator value effect tolerationSeconds")),
    "extra.env": list_of(named("name value valueFrom", ("name",))),
    "extra.envFrom": list_of(named("prefix configMapRef secretRef")),
    "extra.volumes": list_of(VOLUME),
    "extra.volumeMounts": list_of(named("name mountPath subPath subPathExpr readOnly recursiveReadOnly mountPropagation", ("name", "mountPath"))),
    "extra.initContainers": list_of(CONTAINER),
    "extra.containers": list_of(CONTAINER),
    "networkPolicy.grpcFrom": list_of(PEER),
    "networkPolicy.metricsFrom": list_of(PEER),
    "networkPolicy.egress": list_of(named("to ports")),
    "route.parentRefs": list_of(named("group kind namespace name sectionName port", ("name",))),
    "serviceMonitor.relabelings": list_of(RELABELING),
    "serviceMonitor.metricRelabelings": list_of(RELABELING),
}
