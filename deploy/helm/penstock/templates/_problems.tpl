{{/* Values that contradict each other: all of them are said at once, each with what to do. What a schema can say stands
     in values.schema.json. */}}
{{- define "penstock.problems" -}}
{{- $v := .Values }}
{{- $settings := $v.settings }}
{{- $batch := $settings.batch | default dict }}
{{- $queue := $settings.queue | default dict }}
{{- $p := list }}

{{- if and (hasKey $settings "listen") (ne (toString $settings.listen) (printf ":%v" $v.containerPort)) }}
{{- $p = append $p (printf "settings.listen is %v, and the pod's port is %v: leave it out, or set containerPort" $settings.listen $v.containerPort) }}
{{- end }}
{{- range $key, $instead := dict "tls" "existingSecrets.tls" "state_dir" "nothing: the chart has a place for it" }}
{{- if hasKey $settings $key }}
{{- $p = append $p (printf "settings.%s would be overwritten: take %s" $key $instead) }}
{{- end }}
{{- end }}
{{- if hasKey ($settings.admin | default dict) "listen" }}
{{- $p = append $p "settings.admin.listen would be a port that nothing leads to: take adminPort" }}
{{- end }}
{{- if gt (int $v.adminPort) 0 }}
{{- range $key, $port := dict "containerPort" $v.containerPort "share.port" (ternary $v.share.port 0 $v.share.enabled) }}
{{- if eq (int $v.adminPort) (int $port) }}
{{- $p = append $p (printf "adminPort and %s are both %v" $key $v.adminPort) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $v.epp.enabled (hasKey ($settings.epp | default dict) "listen") }}
{{- $p = append $p "settings.epp.listen would be overwritten: take epp.port" }}
{{- end }}
{{- if and (hasKey $settings "epp") (not $v.epp.enabled) }}
{{- $p = append $p "settings.epp without epp.enabled: no Service would lead to the picker" }}
{{- end }}
{{- range $key, $port := dict "containerPort" $v.containerPort "adminPort" $v.adminPort "share.port" (ternary $v.share.port 0 $v.share.enabled) }}
{{- if and $v.epp.enabled (eq (int $v.epp.port) (int $port)) }}
{{- $p = append $p (printf "epp.port and %s are both %v" $key $port) }}
{{- end }}
{{- end }}
{{- if and $v.existingSecrets.admin.name (hasKey ($settings.admin | default dict) "token") }}
{{- $p = append $p "settings.admin.token and existingSecrets.admin.name are two tokens for one thing: take the Secret" }}
{{- end }}
{{- if and $v.existingSecrets.admin.readTokenKey (not $v.existingSecrets.admin.name) }}
{{- $p = append $p "existingSecrets.admin.readTokenKey names an entry of no Secret: set existingSecrets.admin.name" }}
{{- end }}

{{- $longest := max (include "penstock.seconds" ($queue.drain_timeout | default "30s") | float64 | ceil | int) (include "penstock.seconds" ($queue.stop_timeout | default "300s") | float64 | ceil | int) }}
{{- $longest = add $longest (include "penstock.seconds" ($queue.drain_delay | default "0s") | float64 | ceil | int) }}
{{- if le (int $v.terminationGracePeriodSeconds) (int $longest) }}
{{- $p = append $p (printf "terminationGracePeriodSeconds is %v: pods would be killed before queue.drain_delay and the longer of queue.drain_timeout and queue.stop_timeout (%v s) are over" $v.terminationGracePeriodSeconds $longest) }}
{{- end }}

{{- $store := $settings.store | default "" }}
{{- $postgres := or (eq ($batch.store | default "sqlite") "postgres") (hasKey $batch "url") }}
{{- $folder := ternary "batch.data" "" (hasKey $batch "data") }}
{{- if kindIs "map" $store }}
{{- $postgres = or $postgres (hasKey $store "url") }}
{{- $folder = ternary "store.data" $folder (hasKey $store "data") }}
{{- else if hasPrefix "postgres" (toString $store) }}
{{- $postgres = true }}
{{- else if and $store (not (has (toString $store) (list "true" "on" "off"))) }}
{{- $folder = "store" }}
{{- end }}
{{- if $v.persistence.enabled }}
{{- if and (gt (int $v.replicas) 1) (not $postgres) }}
{{- $p = append $p (printf "persistence holds the batches of one gateway, and replicas is %v: take settings.store postgresql://… instead of persistence" $v.replicas) }}
{{- end }}
{{- if $postgres }}
{{- $p = append $p "persistence has nothing to hold where settings.store is PostgreSQL: switch it off" }}
{{- else if hasKey $settings "store" }}
{{- $p = append $p "settings.store would be a second store: persistence has a folder of its own" }}
{{- end }}
{{- if hasKey $batch "data" }}
{{- $p = append $p "settings.batch.data would be a second store: persistence has a folder of its own" }}
{{- end }}
{{- if eq ($v.strategy.type | default "Recreate") "RollingUpdate" }}
{{- $p = append $p "strategy.type RollingUpdate would run two gateways on one batch store: leave it out with persistence" }}
{{- end }}
{{- else if and $folder (not $postgres) (not $v.extraVolumeMounts) }}
{{- $p = append $p (printf "settings.%s names a folder of a read-only file system: set persistence.enabled" $folder) }}
{{- end }}

{{- if $v.share.enabled }}
{{- $shared := $settings.share | default dict }}
{{- if not (or $v.existingSecrets.share $shared.tls) }}
{{- $p = append $p "share.enabled needs existingSecrets.share: gateways show each other its entry `secret`; or settings.share.tls" }}
{{- end }}
{{- range $key, $instead := dict "listen" "share.port" "advertise" "share.port" "secret" "existingSecrets.share" }}
{{- if hasKey $shared $key }}
{{- $p = append $p (printf "settings.share.%s would be overwritten: take %s" $key $instead) }}
{{- end }}
{{- end }}
{{- $elect := $shared.elect | default dict }}
{{- if gt (len $elect) 1 }}
{{- $p = append $p (printf "settings.share.elect names %s: one of them says who decides" (keys $elect | sortAlpha | join " and ")) }}
{{- else if hasKey $elect "static" }}
{{- $p = append $p "settings.share.elect.static names one address, and those of pods change: leave it out, and a Lease is taken" }}
{{- end }}
{{- if $v.persistence.enabled }}
{{- $p = append $p "share.enabled with persistence.enabled: batches in SQLite belong to one gateway; set settings.store to postgresql://…" }}
{{- end }}
{{- if eq (int $v.share.port) (int $v.containerPort) }}
{{- $p = append $p (printf "share.port and containerPort are both %v" $v.share.port) }}
{{- end }}
{{- else if hasKey $settings "share" }}
{{- $p = append $p "settings.share without share.enabled: the Lease would have no rights, and the port would not be open" }}
{{- else if $v.existingSecrets.share }}
{{- $p = append $p "existingSecrets.share does nothing without share.enabled" }}
{{- end }}

{{- if and $v.ingress.enabled (not $v.ingress.hosts) }}
{{- $p = append $p "ingress.enabled without ingress.hosts" }}
{{- end }}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) }}
{{- $p = append $p "httpRoute.enabled without httpRoute.parentRefs: it would belong to no Gateway" }}
{{- end }}
{{- if and $v.metrics.serviceMonitor $v.metrics.podMonitor }}
{{- $p = append $p "metrics.serviceMonitor and metrics.podMonitor would scrape every gateway twice: take one" }}
{{- end }}

{{- if and (eq $v.autoscaling.kind "none") $v.autoscaling.engines }}
{{- $p = append $p "autoscaling.engines without autoscaling.kind: take keda or hpa" }}
{{- end }}
{{- if and (ne $v.autoscaling.kind "none") (not $v.autoscaling.engines) }}
{{- $p = append $p (printf "autoscaling.kind is %s, and autoscaling.engines names nothing to scale" $v.autoscaling.kind) }}
{{- end }}
{{- $targets := list }}
{{- range $v.autoscaling.engines }}
{{- $target := printf "%s/%s" (.kind | default "Deployment") .name }}
{{- if has $target $targets }}
{{- $p = append $p (printf "autoscaling.engines: %s stands there twice" $target) }}
{{- end }}
{{- $targets = append $targets $target }}
{{- $least := hasKey . "minReplicas" | ternary .minReplicas 1 | int }}
{{- if gt $least (int .maxReplicas) }}
{{- $p = append $p (printf "autoscaling.engines: %s has minReplicas %d and maxReplicas %d" $target $least (int .maxReplicas)) }}
{{- end }}
{{- if and (eq $least 0) (eq $v.autoscaling.kind "hpa") }}
{{- $p = append $p (printf "autoscaling.engines: %s cannot go to zero with an HPA: take keda, or minReplicas 1" $target) }}
{{- end }}
{{- end }}

{{- $ours := list "-c" "--config" "--listen" }}
{{- $seen := list }}
{{- range $v.extraArgs }}
{{- $flag := splitList "=" . | first }}
{{- if has $flag $ours }}
{{- $p = append $p (printf "extraArgs: the chart sets %s itself" $flag) }}
{{- else if and (has $flag $seen) (hasPrefix "-" $flag) (ne $flag "--endpoint") }}
{{- $p = append $p (printf "extraArgs: %s is given twice" $flag) }}
{{- end }}
{{- $seen = append $seen $flag }}
{{- end }}
{{- $ours = list "PENSTOCK__LISTEN" "PENSTOCK_ADMIN_TOKEN" "PENSTOCK_READ_TOKEN" "PENSTOCK_SHARE_SECRET" "PENSTOCK_URL" "STATE_DIRECTORY" "POD_IP" "POD_NAME" }}
{{- $seen = list }}
{{- range $v.extraEnv }}
{{- if has .name $ours }}
{{- $p = append $p (printf "extraEnv: the chart sets %s itself" .name) }}
{{- else if has .name $seen }}
{{- $p = append $p (printf "extraEnv: %s is given twice" .name) }}
{{- end }}
{{- $seen = append $seen .name }}
{{- end }}
{{- $volumes := list "settings" "state" "tmp" "tls" "scripts" }}
{{- range $v.extraVolumes }}
{{- if has .name $volumes }}
{{- $p = append $p (printf "extraVolumes: there is a volume %s already" .name) }}
{{- end }}
{{- $volumes = append $volumes .name }}
{{- end }}
{{- range $v.extraVolumeMounts }}
{{- if not (has .name $volumes) }}
{{- $p = append $p (printf "extraVolumeMounts: there is no volume %s" .name) }}
{{- end }}
{{- end }}
{{- $names := list "penstock" "reload" }}
{{- range $v.extraContainers }}
{{- if has .name $names }}
{{- $p = append $p (printf "extraContainers: there is a container %s already" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}

{{- if $p }}
{{- fail (printf "\n\n%d of Penstock's values cannot be:\n  - %s\n" (len $p) (join "\n  - " $p)) }}
{{- end }}
{{- end }}
