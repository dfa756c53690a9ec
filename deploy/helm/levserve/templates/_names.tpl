{{- define "levserve.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "levserve.selector" -}}
app: {{ include "levserve.name" . }}
{{- end }}

{{- define "levserve.labels" -}}
app.kubernetes.io/name: levserve
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "levserve.account" -}}
{{ .Values.serviceAccount.name | default (ternary (include "levserve.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* The claim and the folder of pvc://CLAIM/FOLDER. */}}
{{- define "levserve.claim" -}}
{{- if hasPrefix "pvc://" . }}{{ index (splitList "/" (trimPrefix "pvc://" .)) 0 }}{{ end }}
{{- end }}
{{- define "levserve.path" -}}
{{- if hasPrefix "pvc://" . }}/mnt/{{ trimPrefix "pvc://" . }}{{ else }}{{ . }}{{ end }}
{{- end }}
