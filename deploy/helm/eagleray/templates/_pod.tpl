{{- define "eagleray.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "eagleray.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "eagleray.labels" -}}
{{ include "eagleray.selector" . }}
app.kubernetes.io/version: {{ regexReplaceAll "@.*" (default .Chart.AppVersion .Values.image.tag) "" | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "eagleray.scheme" -}}
{{ if get .Values.config "ssl-certfile" }}https{{ else }}http{{ end }}
{{- end -}}

{{/* The part of a StatefulSet that the pod with the API, "api", and the other nodes, "node", share. */}}
{{- define "eagleray.set" -}}
{{- $api := eq .component "api" -}}
{{- with .root -}}
serviceName: {{ include "eagleray.name" . }}-nodes
podManagementPolicy: Parallel
selector:
  matchLabels:
    {{- include "eagleray.selector" . | nindent 4 }}
    app.kubernetes.io/component: {{ $.component }}
template:
  metadata:
    labels:
      {{- include "eagleray.selector" . | nindent 6 }}
      app.kubernetes.io/component: {{ $.component }}
      {{- with .Values.podLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    annotations:
      # A change of the flags starts the pods anew.
      checksum/config: {{ toYaml .Values.config | sha256sum }}
      {{- with .Values.podAnnotations }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    automountServiceAccountToken: false
    terminationGracePeriodSeconds: {{ add .Values.leaveSeconds .Values.drainSeconds 15 }}
    securityContext:
      runAsNonRoot: true
      runAsUser: 65534
      runAsGroup: 65534
      fsGroup: 65534
      seccompProfile: {type: RuntimeDefault}
    {{- with .Values.imagePullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
      - name: eagleray
        image: "{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}"
        imagePullPolicy: {{ .Values.image.pullPolicy }}
        args:
          - serve
          {{- with .Values.model }}
          - {{ . | quote }}
          {{- end }}
          - --config=/etc/eagleray/serve.yaml
          {{- if $api }}
          - --host=0.0.0.0
          - --port=8000
          - --shutdown-timeout={{ .Values.drainSeconds }}
          {{- end }}
          {{- if gt (int .Values.nodes) 1 }}
          - --nnodes={{ .Values.nodes }}
          - --cluster-token-file=/run/secrets/eagleray/cluster-token
          - --distributed-timeout-seconds={{ .Values.startSeconds }}
          {{- if $api }}
          - --master-addr=$(POD_IP)
          {{- else }}
          - --headless
          - --node-rank=$(NODE_RANK)
          - --master-addr={{ include "eagleray.name" . }}-0.{{ include "eagleray.name" . }}-nodes
          {{- end }}
          {{- end }}
        env:
          {{- if gt (int .Values.nodes) 1 }}
          {{- if $api }}
          - name: POD_IP
            valueFrom: {fieldRef: {fieldPath: status.podIP}}
          {{- else }}
          - name: NODE_RANK
            valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
          {{- end }}
          {{- end }}
          {{- if $api }}
          - name: VLLM_API_KEY
            valueFrom: {secretKeyRef: {name: {{ .Values.secretName }}, key: api-key}}
          {{- end }}
          - name: HF_TOKEN
            valueFrom: {secretKeyRef: {name: {{ .Values.secretName }}, key: hf-token, optional: true}}
          {{- with .Values.env }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        {{- if $api }}
        ports:
          - {name: http, containerPort: 8000}
        # /livez is 200 unless the engine has failed for good, /readyz when requests are answered: while
        # workers are started anew the pod stays, and has no requests sent to it.
        startupProbe:
          httpGet: {path: /livez, port: http, scheme: {{ include "eagleray.scheme" . | upper }}}
          periodSeconds: 5
          failureThreshold: {{ div (add .Values.startSeconds 4) 5 }}
        livenessProbe:
          httpGet: {path: /livez, port: http, scheme: {{ include "eagleray.scheme" . | upper }}}
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 3
        readinessProbe:
          httpGet: {path: /readyz, port: http, scheme: {{ include "eagleray.scheme" . | upper }}}
          periodSeconds: 2
          timeoutSeconds: 2
          failureThreshold: 1
        {{- end }}
        {{- with ternary .Values.leaveSeconds (add .Values.leaveSeconds .Values.drainSeconds) $api }}
        lifecycle:
          # SIGTERM follows: the server refuses new requests, and ends when those that run are done.
          # Where all pods are stopped at once, the other nodes stay for what it has to finish.
          preStop: {sleep: {seconds: {{ . }}}}
        {{- end }}
        resources:
          {{- toYaml .Values.resources | nindent 10 }}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
        volumeMounts:
          - {name: config, mountPath: /etc/eagleray, readOnly: true}
          - {name: models, mountPath: /models}
          - {name: tmp, mountPath: /tmp}
          {{- if gt (int .Values.nodes) 1 }}
          - {name: secret, mountPath: /run/secrets/eagleray, readOnly: true}
          {{- end }}
          {{- with .Values.volumeMounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      - name: config
        configMap: {name: {{ include "eagleray.name" . }}}
      - name: tmp
        emptyDir: {}
      {{- if gt (int .Values.nodes) 1 }}
      - name: secret
        secret:
          secretName: {{ .Values.secretName }}
          defaultMode: 0440
          items: [{key: cluster-token, path: cluster-token}]
      {{- end }}
      {{- if not .Values.persistence.enabled }}
      - name: models
        emptyDir: {}
      {{- end }}
      {{- with .Values.volumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with .Values.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.affinity }}
    affinity:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- if .Values.persistence.enabled }}
volumeClaimTemplates:
  - metadata:
      name: models
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .Values.persistence.storageClass }}
      storageClassName: {{ . }}
      {{- end }}
      resources: {requests: {storage: {{ .Values.persistence.size }}}}
{{- end }}
{{- end -}}
{{- end -}}
