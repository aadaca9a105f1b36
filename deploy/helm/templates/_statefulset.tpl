{{/* StatefulSet of a part whose pods are nodes of the cluster: the nodes with devices, or the activator. */}}
{{- define "weir.statefulSet" -}}
{{- $root := .root -}}
{{- $name := .name -}}
{{- $release := include "weir.name" $root -}}
{{- $part := dict "root" $root "part" .part -}}
{{- $isActivator := eq .part "weir-activator" -}}
{{- $gpu := .values.gpu | default (dict "count" 0) -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels:
    {{- include "weir.labels" $part | nindent 4 }}
spec:
  serviceName: {{ $release }}-nodes
  {{- if or $isActivator (not $root.Values.autoscaling.kind) }}
  replicas: {{ .values.replicas }}
  {{- end }}
  podManagementPolicy: Parallel
  selector:
    matchLabels:
      {{- include "weir.selector" $part | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "weir.labels" $part | nindent 8 }}
        app.kubernetes.io/part-of: weir
      annotations:
        # A change of the settings restarts the nodes.
        checksum/settings: {{ include (print $root.Template.BasePath "/settings.yaml") $root | sha256sum }}
        {{- with .values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
      # Nodes do not use the API of Kubernetes.
      automountServiceAccountToken: false
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        fsGroup: 10001
        seccompProfile: {type: RuntimeDefault}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "weir.selector" $part | nindent 14 }}
      {{- with .values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if or .values.tolerations $gpu.count }}
      tolerations:
        {{- if $gpu.count }}
        - {key: {{ $gpu.resource }}, operator: Exists, effect: NoSchedule}
        {{- end }}
        {{- with .values.tolerations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      containers:
        - name: weir
          image: {{ include "weir.image" $root | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command: [weir, node]
          envFrom:
            - configMapRef: {name: {{ $release }}}
            {{- with $root.Values.blobs.secretName }}
            - secretRef: {name: {{ . }}}
            {{- end }}
          env:
            - name: POD
              valueFrom:
                fieldRef: {fieldPath: metadata.name}
            - {name: WEIR_LISTEN, value: "0.0.0.0:9347"}
            - {name: WEIR_ADVERTISE, value: "$(POD).{{ $release }}-nodes:9347"}
            - {name: WEIR_DATA, value: /data}
            - {name: WEIR_SECRET_FILE, value: /secrets/cluster}
            - {name: WEIR_TOKEN_FILE, value: /secrets/tokens}
            {{- if $isActivator }}
            - {name: WEIR_DEVICES, value: none}
            - {name: WEIR_SET, value: {{ include "weir.settings" (merge (dict) .values.settings $root.Values.nodes.settings) | quote }}}
            {{- end }}
          ports:
            - {name: http, containerPort: 9347}
          startupProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 1
            failureThreshold: 120
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 2
            failureThreshold: 1
          livenessProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          lifecycle:
            preStop:
              # Until then, clients may still be sent here.
              exec: {command: [sleep, "5"]}
          {{- $resources := deepCopy .values.resources }}
          {{- if $gpu.count }}
          {{- $limits := dict $gpu.resource (int $gpu.count) }}
          {{- $resources = mergeOverwrite $resources (dict "limits" $limits) }}
          {{- end }}
          resources:
            {{- toYaml $resources | nindent 12 }}
          securityContext:
            {{- include "weir.containerSecurity" $root | nindent 12 }}
          volumeMounts:
            - {name: data, mountPath: /data}
            - {name: secrets, mountPath: /secrets, readOnly: true}
            - {name: tmp, mountPath: /tmp}
      volumes:
        - name: secrets
          # Nodes refuse files with secrets that every user can read: the mode is 0440.
          secret: {secretName: {{ $root.Values.secretName }}, defaultMode: 288}
        - name: tmp
          emptyDir: {}
  volumeClaimTemplates:
    {{- include "weir.claim" .values.storage | nindent 4 }}
{{- end -}}
