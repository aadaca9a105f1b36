{{/* Name of the release's objects. */}}
{{- define "weir.name" -}}
{{- if eq .Release.Name "weir" -}}weir{{- else -}}{{ printf "%s-weir" .Release.Name | trunc 50 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{/* Labels by which services, budgets and policies select the pods of a part. */}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ .part }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}

{{/* Labels by which services select all nodes of the cluster: those with devices, and the activator. */}}
{{- define "weir.members" -}}
{{- if .Values.activator.enabled -}}
app.kubernetes.io/part-of: weir
app.kubernetes.io/instance: {{ .Release.Name }}
{{- else -}}
{{ include "weir.selector" (dict "root" . "part" "weir") }}
{{- end -}}
{{- end -}}

{{/* Selector of policies for all nodes of the cluster. Pods of older charts have these labels, too. */}}
{{- define "weir.membersOfPolicies" -}}
{{- if .Values.activator.enabled -}}
matchLabels:
  app.kubernetes.io/instance: {{ .Release.Name }}
matchExpressions:
  - {key: app.kubernetes.io/name, operator: In, values: [weir, weir-activator]}
{{- else -}}
matchLabels:
  {{- include "weir.selector" (dict "root" . "part" "weir") | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Labels of every object of a part. */}}
{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- end -}}

{{- define "weir.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Address of the datastore: the given one, or the chart's etcd. */}}
{{- define "weir.datastore" -}}
{{- if .Values.datastore.url -}}
{{ .Values.datastore.url }}
{{- else -}}
{{- $etcd := printf "%s-etcd" (include "weir.name" .) -}}
{{- $hosts := list -}}
{{- range $i := until (int .Values.datastore.etcd.replicas) -}}
{{- $hosts = append $hosts (printf "%s-%d.%s" $etcd $i $etcd) -}}
{{- end -}}
etcd://{{ join "," $hosts }}/weir
{{- end -}}
{{- end -}}

{{/* Settings as KEY=VALUE,KEY=VALUE. */}}
{{- define "weir.settings" -}}
{{- $settings := list -}}
{{- range $key, $value := . -}}
{{- /* Numbers of values are floating-point numbers, which would be printed as 1e+06. */ -}}
{{- if and (kindIs "float64" $value) (eq $value (floor $value)) -}}{{- $value = int64 $value -}}{{- end -}}
{{- $settings = append $settings (printf "%s=%v" $key $value) -}}
{{- end -}}
{{ join "," $settings }}
{{- end -}}

{{/* A claim of a part's storage. */}}
{{- define "weir.claim" -}}
- metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .className }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests: {storage: {{ .size }}}
{{- end -}}

{{/* What no container may do. */}}
{{- define "weir.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
