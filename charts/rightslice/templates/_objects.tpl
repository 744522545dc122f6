{{- /*
The objects of the chart are those of manifests/, which `kubectl apply -k` installs too; the templates change only what
values ask for. A template with changes gets one object at a time and changes it in place; `skip` omits it.
*/ -}}

{{- define "rightslice.objects" -}}
{{- /* Render files of manifests/. Arguments: root, folder, files; optional: namespace, labels, change, context. */ -}}
{{- $cluster := list "Namespace" "PriorityClass" "ClusterRole" "ClusterRoleBinding" "CustomResourceDefinition"
      "MutatingWebhookConfiguration" "ValidatingWebhookConfiguration"
      "ValidatingAdmissionPolicy" "ValidatingAdmissionPolicyBinding" -}}
{{- range $file := .files -}}
{{- $text := include "rightslice.file" (dict "root" $.root "name" (printf "%s/%s.yaml" $.folder $file)) -}}
{{- range regexSplit "(?m)^---$" $text -1 -}}
{{- $object := fromYaml . -}}
{{- if and $.namespace (not (has $object.kind $cluster)) -}}
{{- $_ := set $object.metadata "namespace" $.namespace -}}
{{- end -}}
{{- $labels := $object.metadata.labels | default dict -}}
{{- $_ := set $object.metadata "labels" (merge (include "rightslice.releaseLabels" $.root | fromYaml) $labels ($.labels | default dict)) -}}
{{- if $.change -}}
{{- include $.change (dict "root" $.root "values" $.root.Values "object" $object "context" $.context) -}}
{{- end -}}
{{- if not (hasKey $object "skip") }}
---
{{ toYaml $object }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rightslice.file" -}}
{{- /* Return a file of manifests/, with the namespace of the release. Arguments: root, name. */ -}}
{{- .root.Files.Get (printf "manifests/%s" .name) | replace "rightslice-system" .root.Release.Namespace -}}
{{- end -}}

{{- define "rightslice.labels" -}}
app.kubernetes.io/name: rightslice
app.kubernetes.io/part-of: rightslice
{{ include "rightslice.releaseLabels" . }}
{{- end -}}

{{- define "rightslice.releaseLabels" -}}
{{- /* Labels of every object. Selectors and pods do not have them, because an upgrade cannot change a selector. */ -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "rightslice.image" -}}
{{- /* Set the image of a pod. Arguments: root, spec. */ -}}
{{- $image := .root.Values.image -}}
{{- $container := first .spec.containers -}}
{{- $tag := printf ":%s" ($image.tag | default .root.Chart.AppVersion) -}}
{{- if $image.digest }}{{ $tag = printf "@%s" $image.digest }}{{ end -}}
{{- $_ := set $container "image" (print $image.repository $tag) -}}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy -}}
{{- end -}}

{{- define "rightslice.component" -}}
{{- /* Set what values say about the pods, ServiceAccount and NetworkPolicy of a component. Arguments: object, values, settings. */ -}}
{{- if and (eq .object.kind "ServiceAccount") .settings.serviceAccountAnnotations -}}
{{- $_ := set .object.metadata "annotations" .settings.serviceAccountAnnotations -}}
{{- end -}}
{{- if has .object.kind (list "Deployment" "DaemonSet") -}}
{{- $template := .object.spec.template -}}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" -}}
{{- with get $.settings $field }}{{ $_ := set $template.spec $field . }}{{ end -}}
{{- end -}}
{{- $container := first $template.spec.containers -}}
{{- $_ := set $container "resources" (merge (dict) (.settings.resources | default dict) $container.resources) -}}
{{- with .settings.podAnnotations }}{{ $_ := set $template.metadata "annotations" . }}{{ end -}}
{{- with .settings.podLabels }}{{ $_ := set $template.metadata "labels" (merge (dict) $template.metadata.labels .) }}{{ end -}}
{{- with .values.imagePullSecrets }}{{ $_ := set $template.spec "imagePullSecrets" . }}{{ end -}}
{{- if and (eq .values.securityContext "openshift") $template.spec.securityContext -}}
{{- $_ := set $template.spec "securityContext" (omit $template.spec.securityContext "runAsUser" "runAsGroup" "fsGroup") -}}
{{- end -}}
{{- end -}}
{{- include "rightslice.networkPolicy" . -}}
{{- end -}}

{{- define "rightslice.amounts" -}}
{{- /*
Fail for limits that no replica would load: without an amount, with allowed beside min or max, a minimum above the maximum,
or parts of GPUs. Replicas find what is wrong with defaults themselves, and keep the policies that they have.
Arguments: policies.
*/ -}}
{{- range $policy, $spec := . -}}
{{- range $list := list "perPod" "perContainer" "perGPU" -}}
{{- range $index, $written := get ($spec.limits | default dict) $list | default list -}}
{{- $place := printf "policies.%s.limits.%s[%d]" $policy $list $index -}}
{{- $rule := dict -}}
{{- range $name, $value := $written }}{{ if not (kindIs "invalid" $value) }}{{ $_ := set $rule $name $value }}{{ end }}{{ end -}}
{{- if and (hasKey $rule "allowed") (or (hasKey $rule "min") (hasKey $rule "max")) -}}
{{- fail (printf "%s.allowed: must not be combined with min or max. Write only allowed, or only min and max" $place) -}}
{{- end -}}
{{- if not (or (hasKey $rule "allowed") (hasKey $rule "min") (hasKey $rule "max") (hasKey $rule "default")) -}}
{{- fail (printf "%s: must have allowed, min, max or default, found none. Write max: 8" $place) -}}
{{- end -}}
{{- if and (hasKey $rule "min") (hasKey $rule "max") -}}
{{- if gt (include "rightslice.decimal" $rule.min | float64) (include "rightslice.decimal" $rule.max | float64) -}}
{{- fail (printf "%s.min: must be at most max, which is %v, found %v. Write min: %v or less, or increase max" $place $rule.max $rule.min $rule.max) -}}
{{- end -}}
{{- end -}}
{{- range $amount := concat (values (pick $rule "min" "max")) (get $rule "allowed" | default list) -}}
{{- if and (hasPrefix "nvidia.com/" $rule.resource) (not (hasSuffix ".000000000" (include "rightslice.decimal" $amount))) -}}
{{- fail (printf "%s: must have whole numbers, because GPUs are counted in units, found %v. Write max: 1" $place $amount) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rightslice.decimal" -}}
{{- /* Return a quantity as a number without suffix, down to nano-units. */ -}}
{{- $factors := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
      "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- $suffix := regexFind "([KMGTPE]i|[numkMGTPE])$" (toString .) -}}
{{- printf "%.9f" (mulf (toString . | trimSuffix $suffix) (get $factors $suffix)) -}}
{{- end -}}

{{- define "rightslice.networkPolicy" -}}
{{- /* Omit a NetworkPolicy that values turn off, and set the ports and the addresses of the API servers. */ -}}
{{- if eq .object.kind "NetworkPolicy" -}}
{{- $ports := list -}}
{{- range .values.networkPolicy.apiServerPorts }}{{ $ports = append $ports (dict "port" . "protocol" "TCP") }}{{ end -}}
{{- if gt (len .object.spec.egress) 1 }}{{ $_ := set (first .object.spec.egress) "ports" $ports }}{{ end -}}
{{- if not .values.networkPolicy.enabled }}{{ $_ := set .object "skip" true }}{{ end -}}
{{- if and .values.networkPolicy.apiServerCIDRs (eq .object.metadata.name "rightslice") -}}
{{- $from := list -}}
{{- range .values.networkPolicy.apiServerCIDRs }}{{ $from = append $from (dict "ipBlock" (dict "cidr" .)) }}{{ end -}}
{{- $_ := set (first .object.spec.ingress) "from" $from -}}
{{- with .values.monitoring.serviceMonitor -}}
{{- $prometheus := dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .prometheusNamespace)) -}}
{{- if .enabled }}{{ $_ := set (first $.object.spec.ingress) "from" (append $from $prometheus) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
