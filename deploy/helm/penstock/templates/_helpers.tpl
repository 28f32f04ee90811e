{{- define "penstock.name" -}}
{{ .Values.fullnameOverride | default .Release.Name | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* What every object begins with. */}}
{{- define "penstock.metadata" -}}
name: {{ include "penstock.name" . }}
namespace: {{ .Release.Namespace }}
labels: {{- include "penstock.labels" . | nindent 2 }}
{{- end }}

{{- define "penstock.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "penstock.serviceAccount" -}}
{{- with .Values.serviceAccount -}}
{{ .name | default (ternary (include "penstock.name" $) "default" .create) }}
{{- end }}
{{- end }}

{{- define "penstock.scheme" -}}
{{ ternary "https" "http" (ne .Values.existingSecrets.tls "") }}
{{- end }}

{{- define "penstock.address" -}}
{{ include "penstock.scheme" . }}://{{ include "penstock.name" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port }}
{{- end }}

{{/* Where operators and scrapers go: a port of its own, or the callers'. */}}
{{- define "penstock.adminPort" -}}
{{ ternary .Values.adminPort .Values.containerPort (gt (int .Values.adminPort) 0) }}
{{- end }}
{{- define "penstock.adminAddress" -}}
{{- if gt (int .Values.adminPort) 0 -}}
{{ include "penstock.scheme" . }}://{{ include "penstock.name" . }}-admin.{{ .Release.Namespace }}.svc:{{ .Values.adminPort }}
{{- else -}}
{{ include "penstock.address" . }}
{{- end }}
{{- end }}

{{/* The Lease by which gateways that share elect the one that decides; empty where the settings name another way. */}}
{{- define "penstock.lease" -}}
{{- $elect := (.Values.settings.share | default dict).elect | default dict }}
{{- if and .Values.share.enabled (or (not $elect) (hasKey $elect "kubernetes")) -}}
{{ ($elect.kubernetes | default dict).lease | default (include "penstock.name" .) }}
{{- end }}
{{- end }}

{{/* Whether an InferencePool is followed. */}}
{{- define "penstock.pool" -}}
{{- if and .Values.engines.pool (not (or .Values.settings.endpoints .Values.settings.discovery)) }}yes{{ end }}
{{- range .Values.settings.discovery }}{{ if (.kubernetes | default dict).pool }}yes{{ end }}{{ end }}
{{- end }}

{{/* The settings file: what the values say, and what follows from the other values. */}}
{{- define "penstock.settings" -}}
{{- $settings := deepCopy .Values.settings }}
{{- $_ := set $settings "listen" (printf ":%v" .Values.containerPort) }}
{{- if gt (int .Values.adminPort) 0 }}
{{- $_ := set $settings "admin" (merge (dict "listen" (printf ":%v" .Values.adminPort)) ($settings.admin | default dict)) }}
{{- end }}
{{- if not (or $settings.endpoints $settings.discovery) }}
{{- with .Values.engines }}
{{- $pods := ternary (dict "pool" .pool) (dict "selector" .selector "port" (toString .port)) (ne .pool "") }}
{{- $_ := set $settings "discovery" (list (dict "kubernetes" $pods)) }}
{{- end }}
{{- end }}
{{- if .Values.epp.enabled }}
{{- $_ := set $settings "epp" (merge (dict "listen" (printf "[::]:%v" .Values.epp.port)) ($settings.epp | default dict)) }}
{{- end }}
{{- with .Values.existingSecrets }}
{{- if .tls }}
{{- $_ := set $settings "tls" (dict "cert" "/etc/penstock-tls/tls.crt" "key" "/etc/penstock-tls/tls.key") }}
{{- end }}
{{- if .admin.name }}
{{- $admin := dict "token" "${PENSTOCK_ADMIN_TOKEN}" }}
{{- if .admin.readTokenKey }}
{{- $_ := set $admin "read_token" "${PENSTOCK_READ_TOKEN}" }}
{{- end }}
{{- $_ := set $settings "admin" (merge $admin ($settings.admin | default dict)) }}
{{- end }}
{{- end }}
{{- if .Values.persistence.enabled }}
{{- $_ := set $settings "store" (dict "data" "/var/lib/penstock/batch") }}
{{- if not (hasKey ($settings.batch | default dict) "serve") }}
{{- $_ := set $settings "batch" (merge (dict "serve" true) ($settings.batch | default dict)) }}
{{- end }}
{{- end }}
{{- if .Values.share.enabled }}
{{- /* A pod's address may be of either family: brackets fit both. */}}
{{- $ours := dict "listen" (printf ":%v" .Values.share.port) "advertise" (printf "[${POD_IP}]:%v" .Values.share.port) }}
{{- with include "penstock.lease" . }}
{{- $_ := set $ours "elect" (dict "kubernetes" (dict "lease" .)) }}
{{- end }}
{{- if .Values.existingSecrets.share }}
{{- $_ := set $ours "secret" "${PENSTOCK_SHARE_SECRET}" }}
{{- end }}
{{- $_ := set $settings "share" (merge $ours ($settings.share | default dict) (dict "name" "${POD_NAME}")) }}
{{- end }}
{{- toYaml $settings }}
{{- end }}

{{/* A duration of the settings in seconds: "5m", "300s", 300. */}}
{{- define "penstock.seconds" -}}
{{- $number := regexFind "^[0-9.]+" (toString .) | default "0" }}
{{- $unit := regexReplaceAll "^[0-9.]+\\s*" (toString .) "" }}
{{- mulf (float64 $number) (get (dict "" 1 "s" 1 "m" 60 "h" 3600 "ms" 0.001) $unit | default 1) }}
{{- end }}
