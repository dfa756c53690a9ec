{{/* Values that contradict each other. The schema refuses values that do not exist and those of a wrong kind. */}}
{{- define "levserve.check" -}}
{{- $v := .Values }}
{{- if not $v.image }}{{ fail "image: is empty. Name an image with a tag or a digest." }}{{ end }}
{{- if and (eq $v.accelerator.type "cpu") (gt (int $v.accelerator.count) 0) }}
{{- fail "accelerator.count: a pod on CPUs has none. Set accelerator.type to nvidia or google-tpu." }}{{ end }}
{{- if and (ne $v.accelerator.type "cpu") (lt (int $v.accelerator.count) 1) }}
{{- fail (printf "accelerator.count: is %d, and accelerator.type %s needs at least 1." (int $v.accelerator.count) $v.accelerator.type) }}{{ end }}
{{- range $name := list "HOST" "PORT" "MODEL_URI" "MODEL_NAME" "DRAIN_SECONDS" "LOCAL_MODEL_CACHE" "MODEL_STREAM" }}
{{- if or (hasKey $v.env $name) (hasKey $v.secretEnv $name) }}
{{- fail (printf "env.%s: the chart sets it; see modelArtifacts, cache, drainSeconds and service." $name) }}{{ end }}{{ end }}
{{- range $name, $_ := $v.secretEnv }}
{{- if hasKey $v.env $name }}{{ fail (printf "secretEnv.%s: is in env too." $name) }}{{ end }}{{ end }}
{{- range $name := list "API_KEY" "ADMIN_API_KEY" "BUNDLE_SIGNING_KEY" "HF_TOKEN" }}
{{- if hasKey $v.env $name }}{{ fail (printf "env.%s: is a key. Take it from a secret: secretEnv.%s." $name $name) }}{{ end }}{{ end }}
{{- if gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas) }}
{{- fail "autoscaling.minReplicas: is more than autoscaling.maxReplicas." }}{{ end }}
{{- if and (eq $v.autoscaling.type "hpa") (eq (int $v.autoscaling.minReplicas) 0) }}
{{- fail "autoscaling.minReplicas: a horizontal autoscaler cannot go to 0. Set autoscaling.type to keda." }}{{ end }}
{{- if and (eq $v.autoscaling.type "keda") (not $v.autoscaling.serverAddress) }}
{{- fail "autoscaling.serverAddress: is empty, and keda asks Prometheus there." }}{{ end }}
{{- if and (eq $v.autoscaling.type "keda") (eq (int $v.autoscaling.minReplicas) 0) (not $v.autoscaling.wakeQuery) }}
{{- fail "autoscaling.wakeQuery: is empty, and without a pod nothing says that requests wait. Name a gateway's series." }}{{ end }}
{{- if and $v.prewarm.enabled (not (hasKey $v.env "BUNDLE_URI")) }}
{{- fail "prewarm.enabled: needs env.BUNDLE_URI, where the pods find the bundle." }}{{ end }}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.gateway.name) }}
{{- fail "httpRoute.gateway.name: is empty. Name the Gateway." }}{{ end }}
{{- if $v.inferencePool.enabled }}
{{- if not $v.inferencePool.endpointPicker.name }}
{{- fail "inferencePool.endpointPicker.name: is empty. Name the picker's Service." }}{{ end }}
{{- if and (hasKey $v.secretEnv "API_KEY") (not (hasKey $v.env "METRICS_PORT")) }}
{{- fail "inferencePool.enabled: with secretEnv.API_KEY a picker cannot read /metrics. Set env.METRICS_PORT." }}{{ end }}{{ end }}
{{- if and $v.healthCheckPolicy.enabled (not $v.httpRoute.enabled) }}
{{- fail "healthCheckPolicy.enabled: without httpRoute.enabled no gateway checks anything." }}{{ end }}
{{- if $v.batch.enabled }}
{{- if not (and $v.batch.input $v.batch.output) }}{{ fail "batch.input, batch.output: name both." }}{{ end }}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" $v.batch.input)) (printf "%s/" (trimSuffix "/" $v.batch.output)) }}
{{- fail "batch.output: lies inside batch.input." }}{{ end }}
{{- range $end := list $v.batch.input $v.batch.output }}
{{- if and (hasPrefix "pvc://" $end) (ne (include "levserve.claim" $end) (include "levserve.claim" $v.modelArtifacts.uri)) }}
{{- fail (printf "batch: %s is on another claim than modelArtifacts.uri." $end) }}{{ end }}{{ end }}{{ end }}
{{- end }}
