{{/* The settings that the chart sets, and the user's. */}}
{{- define "levserve.env" -}}
{{- $v := .Values }}
{{- $env := dict "DRAIN_SECONDS" (toString $v.drainSeconds) "LOG_FORMAT" "json" "MODEL_STREAM" (toString (eq $v.cache.type "none")) }}
{{- if $v.modelArtifacts.uri }}{{ $_ := set $env "MODEL_URI" (include "levserve.path" $v.modelArtifacts.uri) }}{{ end }}
{{- if $v.modelArtifacts.name }}{{ $_ := set $env "MODEL_NAME" $v.modelArtifacts.name }}{{ end }}
{{- if ne $v.cache.type "none" }}{{ $_ := set $env "LOCAL_MODEL_CACHE" "/cache" }}{{ end }}
{{- if $v.inferencePool.enabled }}{{ $_ := set $env "METRICS_COMPAT" "vllm" }}{{ end }}
{{- range $name, $value := $v.env }}{{ $_ := set $env $name (toString $value) }}{{ end }}
{{- range $name, $value := $env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- range $name, $secret := $v.secretEnv }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: { name: {{ $secret.name }}, key: {{ $secret.key }} }
{{- end }}
{{- if $v.modelArtifacts.authSecretName }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: { name: {{ $v.modelArtifacts.authSecretName }}, key: HF_TOKEN }
{{- end }}
{{- end }}

{{/* What the pods of the service and of both jobs have in common. */}}
{{- define "levserve.placement" -}}
{{- $v := .Values }}
serviceAccountName: {{ include "levserve.account" . }}
automountServiceAccountToken: false
enableServiceLinks: false # otherwise variables such as LEVSERVE_PORT appear among the settings
securityContext:
  seccompProfile: { type: RuntimeDefault }
  {{- if and (ne (int $v.runAsUser) 0) (include "levserve.claim" $v.modelArtifacts.uri) }}
  fsGroup: {{ $v.runAsUser }} # may write the claim
  {{- end }}
{{- with $v.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $v.accelerator.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- $resource := include "levserve.resource" . }}
{{- if or $resource $v.tolerations }}
tolerations:
  {{- if $resource }}
  - { key: {{ $resource }}, operator: Exists }
  {{- end }}
  {{- with $v.tolerations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
volumes:
  - name: tmp # the only folder of the image's own that a pod may write
    emptyDir: {}
  {{- if ne $v.cache.type "none" }}
  - name: cache
    emptyDir:
      {{- if eq $v.cache.type "memory" }}
      medium: Memory
      {{- end }}
      sizeLimit: {{ $v.cache.sizeGi }}Gi
  {{- end }}
  {{- with include "levserve.claim" $v.modelArtifacts.uri }}
  - name: model
    persistentVolumeClaim: { claimName: {{ . }} }
  {{- end }}
{{- end }}

{{- define "levserve.resource" -}}
{{ get (dict "nvidia" "nvidia.com/gpu" "google-tpu" "google.com/tpu") .Values.accelerator.type }}
{{- end }}

{{- define "levserve.container" -}}
{{- $v := .Values }}
image: {{ $v.image }}
securityContext:
  runAsUser: {{ $v.runAsUser }}
  runAsNonRoot: {{ ne (int $v.runAsUser) 0 }}
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- $requests := deepCopy $v.resources.requests }}
{{- $limits := deepCopy $v.resources.limits }}
{{- with include "levserve.resource" . }}
{{- $_ := set $requests . (toString $v.accelerator.count) }}
{{- $_ := set $limits . (toString $v.accelerator.count) }}
{{- end }}
resources:
  requests: {{ toYaml $requests | nindent 4 }}
  {{- if $limits }}
  limits: {{ toYaml $limits | nindent 4 }}
  {{- end }}
env: {{ include "levserve.env" . | nindent 2 }}
volumeMounts:
  - { name: tmp, mountPath: /tmp }
  {{- if ne $v.cache.type "none" }}
  - { name: cache, mountPath: /cache }
  {{- end }}
  {{- with include "levserve.claim" $v.modelArtifacts.uri }}
  - { name: model, mountPath: /mnt/{{ . }} }
  {{- end }}
{{- end }}
