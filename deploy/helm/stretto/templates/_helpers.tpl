{{- define "stretto.labels" -}}
app.kubernetes.io/name: stretto
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
{{- define "stretto.selector" -}}
app.kubernetes.io/name: stretto
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
