{{/* What pods have that serve and the one that tests: how they are pulled, whom they run as, on which nodes. */}}
{{- define "ebb.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets: {{- range . }}{{ dict "name" . | list | toYaml | nindent 2 }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "ebb.podSecurityContext" -}}
{{- $own := dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 "fsGroupChangePolicy" "OnRootMismatch" -}}
{{- $_ := set $own "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- mergeOverwrite $own .Values.podSecurityContext | toYaml -}}
{{- end -}}

{{- define "ebb.securityContext" -}}
{{- $own := dict "allowPrivilegeEscalation" false "capabilities" (dict "drop" (list "ALL")) -}}
{{- /* But for NVIDIA's container hook, which writes to it. */ -}}
{{- $_ := set $own "readOnlyRootFilesystem" (ne .Values.accelerator.kind "cuda") -}}
{{- mergeOverwrite $own .Values.securityContext | toYaml -}}
{{- end -}}

{{- define "ebb.nodes" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $device := include "ebb.device" . }}
{{- if or $device .Values.tolerations }}
tolerations:
  {{- with $device }}
  - {key: {{ . }}, operator: Exists, effect: NoSchedule}
  {{- end }}
  {{- with .Values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Metadata and spec of a pod, for both kinds of workload. */}}
{{- define "ebb.pod" -}}
metadata:
  labels: {{- include "ebb.labels" . | nindent 4 }}
  annotations:
    {{- $config := omit (include "ebb.config" . | fromYaml) "tenants" "tenant_defaults" "models" "quality" }}
    {{- $_ := set $config "log" (omit (default dict $config.log) "level") }}
    {{- $_ := set $config "scheduling" (omit (default dict $config.scheduling) "ttft_target" "inter_token_target" "queue_max") }}
    {{- $_ := set $config "server" (omit (default dict $config.server) "reader_patience" "watchers_max" "connections_per_address" "new_connections_per_address") }}
    {{- $_ := set $config "cache" (omit (default dict $config.cache) "sessions_max") }}
    {{- $_ := set $config "store" (omit (default dict $config.store) "snapshot_every") }}
    # Without what a running server takes, but for server.drain_timeout, which is the pod's grace, too.
    checksum/config: {{ toYaml $config | sha256sum }}
    {{- with merge (dict) .Values.podAnnotations .Values.commonAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "ebb.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "ebb.gracePeriod" . }}
  {{- with include "ebb.pullSecrets" . }}
  {{- . | nindent 2 }}
  {{- end }}
  securityContext: {{- include "ebb.podSecurityContext" . | nindent 4 }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if .Values.topologySpread }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: topology.kubernetes.io/zone
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "ebb.selector" . | nindent 10 }}
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: {{ if include "ebb.several" . }}DoNotSchedule{{ else }}ScheduleAnyway{{ end }}
      nodeTaintsPolicy: Honor  # a node that is drained, or whose taint pods do not bear, takes none of them, and does not count
      labelSelector:
        matchLabels: {{- include "ebb.selector" . | nindent 10 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "ebb.nodes" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.accelerator.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .Values.extra.initContainers }}
  initContainers: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: ebb
      image: {{ include "ebb.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- with .Values.extra.args }}
      args: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.extra.envFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      env:  # for `ebb` inside the pod; the server goes by its file, but for its own name
        - {name: EBB_ADDR, value: "127.0.0.1:{{ .Values.ports.grpc }}"}
        {{- if include "ebb.redis" . }}
        {{- if eq .Values.workload "StatefulSet" }}
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - {name: EBB_SERVER_ENDPOINT, value: "$(POD_NAME).{{ include "ebb.name" . }}-pods.{{ .Release.Namespace }}:{{ .Values.ports.grpc }}"}
        {{- else }}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - {name: EBB_SERVER_ENDPOINT, value: "$(POD_IP):{{ .Values.ports.grpc }}"}
        {{- end }}
        {{- end }}
        {{- with .Values.extra.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: grpc, containerPort: {{ .Values.ports.grpc }}}
        - {name: http, containerPort: {{ .Values.ports.http }}}
        {{- with .Values.ports.openai }}
        - {name: openai, containerPort: {{ . }}}
        {{- end }}
        {{- with .Values.ports.health }}
        - {name: health, containerPort: {{ . }}}
        {{- end }}
      startupProbe:  # ports open when the model is loaded and its sessions are back
        {{ include "ebb.probe" (list . "liveness" "/healthz") }}
        periodSeconds: 10
        failureThreshold: {{ .Values.probes.startupFailureThreshold }}
      readinessProbe:
        {{ include "ebb.probe" (list . "readiness" "/readyz") }}
        periodSeconds: {{ .Values.probes.readinessPeriodSeconds }}
        failureThreshold: 2
      livenessProbe:
        {{ include "ebb.probe" (list . "liveness" "/healthz") }}
        periodSeconds: {{ .Values.probes.livenessPeriodSeconds }}
        failureThreshold: 6
        timeoutSeconds: 5
      lifecycle:
        preStop:
          exec: {command: [sleep, "{{ .Values.drain.preStopSeconds }}"]}
      terminationMessagePolicy: FallbackToLogsOnError
      resources: {{- include "ebb.resources" . | nindent 8 }}
      securityContext: {{- include "ebb.securityContext" . | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/ebb, readOnly: true}
        {{- if include "ebb.tokens" . }}
        - {name: tokens, mountPath: /etc/ebb-tokens, readOnly: true}
        {{- end }}
        {{- if .Values.secrets.redis }}
        - {name: redis, mountPath: /etc/ebb-redis, readOnly: true}
        {{- end }}
        {{- if include "ebb.tls" . }}
        - {name: tls, mountPath: /etc/ebb-tls, readOnly: true}
        {{- end }}
        {{- if .Values.store.enabled }}
        - {name: store, mountPath: /var/lib/ebb}
        {{- end }}
        {{- if include "ebb.models" . }}
        - {name: models, mountPath: /models, readOnly: true}
        {{- end }}
        {{- with .Values.extra.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with .Values.extra.containers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "ebb.name" . }}}
    {{- with include "ebb.tokens" . }}
    - name: tokens
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- with .Values.secrets.redis }}
    - name: redis
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- with include "ebb.tls" . }}
    - name: tls
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- with include "ebb.models" . }}
    - name: models
      persistentVolumeClaim: {claimName: {{ . }}{{ if $.Values.model.existingClaim }}, readOnly: true{{ end }}}
    {{- end }}
    {{- with .Values.extra.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
