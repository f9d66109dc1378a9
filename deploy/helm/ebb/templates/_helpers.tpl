{{- define "ebb.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "ebb.selector" -}}
app.kubernetes.io/name: {{ default "ebb" .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Of the pod of `helm test`, which is no server. */}}
{{- define "ebb.testSelector" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: test
{{- end -}}

{{- define "ebb.labels" -}}
{{ include "ebb.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An object's annotations, of a list of [context, its own], and nothing where there are none. */}}
{{- define "ebb.annotations" -}}
{{- with merge (dict) (index . 1) (index . 0).Values.commonAnnotations -}}
annotations: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "ebb.serviceAccount" -}}
{{- default (include "ebb.name" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* Names of Secrets and claims, yours or the chart's; empty for none. */}}
{{- define "ebb.tokens" -}}
{{- if and .Values.secrets.tokens .Values.secrets.tokenLines -}}
{{- fail "secrets.tokens names a Secret, and secrets.tokenLines asks for another: set one of them" -}}
{{- end -}}
{{- if .Values.secrets.tokenLines -}}{{ include "ebb.name" . }}-tokens{{- else -}}{{ .Values.secrets.tokens }}{{- end -}}
{{- end -}}

{{- define "ebb.tls" -}}
{{- if .Values.secrets.tls -}}{{ .Values.secrets.tls }}{{- else if .Values.certificate.issuerRef -}}{{ include "ebb.name" . }}-tls{{- end -}}
{{- end -}}

{{/* Refuses credentials of `helm test` that nobody asks for, or that do not let it in. */}}
{{- define "ebb.checkTest" -}}
{{- $mode := dig "auth" "mode" "none" .Values.config -}}
{{- if and .Values.test.tokenSecret (not (contains "token" $mode)) -}}
{{- fail (printf "test.tokenSecret is set, and config.auth.mode is %s, which asks for no token: leave out the one, or set token" $mode) -}}
{{- end -}}
{{- if and .Values.test.tlsSecret (not (contains "mtls" $mode)) -}}
{{- fail (printf "test.tlsSecret is set, and config.auth.mode is %s, which asks for no certificate: leave out the one, or set mtls" $mode) -}}
{{- end -}}
{{- if and .Values.test.tokenSecret (contains "mtls" $mode) (not .Values.test.tlsSecret) -}}
{{- fail (printf "test.tokenSecret is set, and config.auth.mode is %s, which asks for a certificate, too: set test.tlsSecret" $mode) -}}
{{- end -}}
{{- end -}}

{{/* What an appProtocol calls gRPC: the name with h2c is of cleartext alone, and there is none for HTTP/2 over TLS. */}}
{{- define "ebb.grpcProtocol" -}}
{{- if include "ebb.tls" . -}}https{{- else -}}kubernetes.io/h2c{{- end -}}
{{- end -}}

{{/* Refuses a proxy, as (list . "route.enabled"), where callers have to show certificates: it ends their TLS. */}}
{{- define "ebb.noClientCertificates" -}}
{{- $mode := dig "auth" "mode" "none" (index . 0).Values.config -}}
{{- if contains "mtls" $mode -}}
{{- fail (printf "%s is true, and config.auth.mode is %s: the proxy ends TLS, and callers' certificates with it. Leave out the one, or set token" (index . 1) $mode) -}}
{{- end -}}
{{- end -}}

{{- define "ebb.openaiScheme" -}}
{{- ternary "https" "http" (eq "on" (dig "openai" "tls" "off" .Values.config)) -}}
{{- end -}}

{{- define "ebb.models" -}}
{{- if and .Values.model.existingClaim .Values.model.claimSize -}}
{{- fail "model.existingClaim names a claim, and model.claimSize asks for another: set one of them" -}}
{{- end -}}
{{- if .Values.model.claimSize -}}{{ include "ebb.name" . }}-models{{- else -}}{{ .Values.model.existingClaim }}{{- end -}}
{{- end -}}

{{- define "ebb.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* Kubernetes kills a pod after this long, so it must cover everything that a drain does. */}}
{{- define "ebb.gracePeriod" -}}
{{- $drain := .Values.drain -}}
{{- $sum := add $drain.preStopSeconds $drain.timeoutSeconds $drain.snapshotSeconds 15 -}}
{{- with .Values.terminationGracePeriodSeconds -}}
{{- if lt (int .) (int $sum) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, below the %d that drain takes: preStopSeconds, timeoutSeconds, snapshotSeconds and 15" (int .) (int $sum)) -}}
{{- end -}}
{{- end -}}
{{- default $sum .Values.terminationGracePeriodSeconds | int -}}
{{- end -}}

{{/* Not empty where sessions are in a Redis. */}}
{{- define "ebb.redis" -}}
{{- dig "store" "redis" "" .Values.config -}}
{{- end -}}

{{/* Not empty where there may be several pods. */}}
{{- define "ebb.several" -}}
{{- if or .Values.autoscaling.kind (gt (int .Values.replicas) 1) -}}several{{- end -}}
{{- end -}}

{{/* How many pods. Where autoscaling sets it, as many as there are: what an upgrade leaves out that was there before Helm takes away,
and the API server makes it 1. */}}
{{- define "ebb.replicas" -}}
{{- if not .Values.autoscaling.kind -}}
replicas: {{ .Values.replicas }}
{{- else -}}
{{- with (lookup "apps/v1" .Values.workload .Release.Namespace (include "ebb.name" .)).spec -}}
replicas: {{ int .replicas }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What Kubernetes calls the accelerator, as its nodes' taint does; empty for none. */}}
{{- define "ebb.device" -}}
{{- get (dict "cpu" "" "cuda" "nvidia.com/gpu" "rocm" "amd.com/gpu") .Values.accelerator.kind -}}
{{- end -}}

{{- define "ebb.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- with include "ebb.device" . -}}
{{- $_ := set $resources "limits" (merge (dict (default . $.Values.accelerator.resourceName) (int $.Values.accelerator.count)) (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* What pods are added by. Ratios in percent: of each pod's fullest model, by the labels of a Prometheus operator's scrape. */}}
{{- define "ebb.pagesReserved" -}}
{{- $of := printf "namespace=%q,job=\"%s-pods\"" .Release.Namespace (include "ebb.name" .) -}}
sum(100 * max without (model) (sum without (state) (ebb_kv_pages{ {{- $of }},state="owned"}) / ebb_kv_pages_limit{ {{- $of }}}))
{{- end -}}

{{- define "ebb.queue" -}}
{{- $of := printf "namespace=%q,job=\"%s-pods\"" .Release.Namespace (include "ebb.name" .) -}}
sum(100 * max without (model) ((sum without (tenant) (ebb_queue_depth{ {{- $of }}}) + ebb_requests_running{ {{- $of }}}) / ebb_requests_limit{ {{- $of }}}))
{{- end -}}

{{/* Seconds within which 19 of 20 requests began, of each pod's slowest model. One that nobody asks has none, and no part. */}}
{{- define "ebb.queueWait" -}}
{{- $of := printf "namespace=%q,job=\"%s-pods\"" .Release.Namespace (include "ebb.name" .) -}}
sum(max without (model) (histogram_quantile(0.95, sum without (tenant) (rate(ebb_queue_wait_seconds_bucket{ {{- $of }}}[2m]))) >= 0))
{{- end -}}

{{/* How the kubelet asks: (list . "readiness" "/readyz"). */}}
{{- define "ebb.probe" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.ports.health -}}
grpc: {port: {{ int . }}, service: {{ index $ 1 }}}
{{- else -}}
httpGet: {path: {{ index . 2 }}, port: http}
{{- end -}}
{{- end -}}

{{/* The server's configuration: what the values say, and what follows from the chart. */}}
{{- define "ebb.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $server := dict "listen" (printf "0.0.0.0:%d" (int .Values.ports.grpc)) "http_listen" (printf "0.0.0.0:%d" (int .Values.ports.http)) "drain_timeout" (printf "%ds" (int .Values.drain.timeoutSeconds)) -}}
{{- $ports := dict -}}
{{- range $name := list "grpc" "http" "openai" "health" -}}
{{- with get $.Values.ports $name -}}
{{- $port := int . | toString -}}
{{- with get $ports $port -}}
{{- fail (printf "ports.%s and ports.%s are both %s" . $name $port) -}}
{{- end -}}
{{- $_ := set $ports $port $name -}}
{{- end -}}
{{- end -}}
{{- with .Values.ports.health -}}
{{- $_ := set $server "health_listen" (printf "0.0.0.0:%d" (int .)) -}}
{{- end -}}
{{- $_ := set $config "server" (merge $server (default dict $config.server)) -}}
{{- with .Values.ports.openai -}}
{{- $mode := dig "auth" "mode" "none" $config -}}
{{- if contains "mtls" $mode -}}
{{- fail (printf "ports.openai is %d, a port that knows no client certificates, and config.auth.mode is %s: leave out the one, or set token" (int .) $mode) -}}
{{- end -}}
{{- if and (eq "https" (include "ebb.openaiScheme" $)) (not (include "ebb.tls" $)) -}}
{{- fail "config.openai.tls is on, which needs secrets.tls or certificate.issuerRef" -}}
{{- end -}}
{{- $_ := set $config "openai" (merge (dict "listen" (printf "0.0.0.0:%d" (int .))) (default dict $config.openai)) -}}
{{- else -}}
{{- if $config.openai -}}
{{- fail "config.openai is set, and there is no port that it is about: set ports.openai" -}}
{{- end -}}
{{- end -}}
{{- if .Values.experiments -}}
{{- $_ := set $config "experiments" (merge (dict "file" "/etc/ebb/experiments.json") (default dict $config.experiments)) -}}
{{- end -}}
{{- with dig "cache" "swap_max" "0" $config -}}
{{- if and (ne (toString .) "0") (not $.Values.store.enabled) -}}
{{- fail (printf "config.cache.swap_max is %v, of the pod's volume, which needs store.enabled" .) -}}
{{- end -}}
{{- end -}}
{{- if .Values.model.file -}}
{{- $_ := required "model.file names a file of a volume: set model.existingClaim, or model.claimSize" (include "ebb.models" .) -}}
{{- $_ := set $config "model" (merge (dict "path" (printf "/models/%s" .Values.model.file)) (default dict $config.model)) -}}
{{- else if and (include "ebb.models" .) (empty .Values.extra.envFrom) -}}
{{- /* Else the built-in model would be served in silence. What envFrom brings is not seen here. */ -}}
{{- if not (regexMatch "/models[/\"]" (list $config .Values.extra.args .Values.extra.env | toJson)) -}}
{{- fail (printf "model.%s is set, and no file of that volume is served: name it in model.file, or as /models, or below it, in config.models" (ternary "existingClaim" "claimSize" (empty .Values.model.claimSize))) -}}
{{- end -}}
{{- end -}}
{{- with get (dict "cuda" "cuda" "rocm" "hip") .Values.accelerator.kind -}}
{{- $_ := set $config "model" (merge (default dict $config.model) (dict "worker" .)) -}}
{{- end -}}
{{- if eq .Values.workload "Deployment" -}}
{{- $_ := required "workload is Deployment, whose pods keep no sessions: set config.store.redis, where they are shared" (default dict $config.store).redis -}}
{{- if .Values.store.enabled -}}
{{- fail "workload is Deployment, whose pods have no volumes of their own: set store.enabled to false" -}}
{{- end -}}
{{- end -}}
{{- if (default dict $config.store).redis -}}
{{- $durability := default "off" $config.store.durability -}}
{{- if ne $durability "step" -}}
{{- fail (printf "config.store.durability is %s, and config.store.redis takes step alone" $durability) -}}
{{- end -}}
{{- if $config.models -}}
{{- fail "config.models is set, and pods that share config.store.redis share sessions of one model" -}}
{{- end -}}
{{- end -}}
{{- if .Values.secrets.redis -}}
{{- $_ := required "secrets.redis is set, and no config.store.redis that it opens" (default dict $config.store).redis -}}
{{- $_ := set $config.store "redis_password_file" "/etc/ebb-redis/password" -}}
{{- end -}}
{{- if .Values.store.enabled -}}
{{- $_ := set $config "store" (merge (dict "dir" "/var/lib/ebb") (default dict $config.store)) -}}
{{- else -}}
{{- with (default dict $config.store).durability -}}
{{- if and (ne . "off") (not $config.store.redis) -}}
{{- fail (printf "config.store.durability is %s, which needs store.enabled" .) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $config "store" (merge (dict "dir" "") (default dict $config.store)) -}}
{{- end -}}
{{- $mode := default "none" (default dict $config.auth).mode -}}
{{- if contains "token" $mode -}}
{{- $_ := required (printf "config.auth.mode is %s, which needs secrets.tokens or secrets.tokenLines" $mode) (include "ebb.tokens" .) -}}
{{- $_ := set $config "auth" (merge (dict "token_file" "/etc/ebb-tokens/tokens") $config.auth) -}}
{{- else if include "ebb.tokens" . -}}
{{- fail (printf "%s is set, and config.auth.mode is %s, which asks for no token: leave out the one, or set %s" (ternary "secrets.tokenLines" "secrets.tokens" (not (empty .Values.secrets.tokenLines))) $mode (ternary "token+mtls" "token" (eq "mtls" $mode))) -}}
{{- end -}}
{{- if contains "mtls" $mode -}}
{{- $_ := required (printf "config.auth.mode is %s, which needs secrets.tls or certificate.issuerRef" $mode) (include "ebb.tls" .) -}}
{{- end -}}
{{- if include "ebb.tls" . -}}
{{- $tls := dict "cert" "/etc/ebb-tls/tls.crt" "key" "/etc/ebb-tls/tls.key" -}}
{{- if contains "mtls" $mode -}}
{{- $_ := set $tls "client_ca" "/etc/ebb-tls/ca.crt" -}}
{{- end -}}
{{- $_ := set $config "tls" (merge $tls (default dict $config.tls)) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* A HorizontalPodAutoscaler's behavior: up at once, down by a pod in ten minutes, since each that goes has sessions. */}}
{{- define "ebb.scaling" -}}
{{- $least := int .Values.autoscaling.minReplicas -}}
{{- $most := int .Values.autoscaling.maxReplicas -}}
{{- if gt $least $most -}}
{{- fail (printf "autoscaling.minReplicas is %d, above autoscaling.maxReplicas, %d" $least $most) -}}
{{- end -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies: [{type: Percent, value: 100, periodSeconds: 30}]
scaleDown:
  stabilizationWindowSeconds: 900
  policies: [{type: Pods, value: 1, periodSeconds: 600}]
{{- end -}}
