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
{{- range regexSplit "(?m)^---$" ($.root.Files.Get (printf "manifests/%s/%s.yaml" $.folder $file)) -1 -}}
{{- $object := fromYaml . -}}
{{- if and $.namespace (not (has $object.kind $cluster)) -}}
{{- $_ := set $object.metadata "namespace" $.namespace -}}
{{- end -}}
{{- if $.labels -}}
{{- $_ := set $object.metadata "labels" (merge (dict) ($object.metadata.labels | default dict) $.labels) -}}
{{- end -}}
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

{{- define "rightslice.labels" -}}
app.kubernetes.io/name: rightslice
app.kubernetes.io/part-of: rightslice
{{- end -}}

{{- define "rightslice.pod" -}}
{{- /* Set image, pull secrets and resources of a pod. Arguments: root, spec, resources. */ -}}
{{- $image := .root.Values.image -}}
{{- $container := first .spec.containers -}}
{{- $tag := printf ":%s" ($image.tag | default .root.Chart.AppVersion) -}}
{{- if $image.digest }}{{ $tag = printf "@%s" $image.digest }}{{ end -}}
{{- $_ := set $container "image" (print $image.repository $tag) -}}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy -}}
{{- if .resources }}{{ $_ := set $container "resources" .resources }}{{ end -}}
{{- if .root.Values.imagePullSecrets }}{{ $_ := set .spec "imagePullSecrets" .root.Values.imagePullSecrets }}{{ end -}}
{{- end -}}

{{- define "rightslice.networkPolicy" -}}
{{- /* Omit a NetworkPolicy that values turn off, and admit only the API servers if values name them. */ -}}
{{- if eq .object.kind "NetworkPolicy" -}}
{{- if not .values.networkPolicy.enabled }}{{ $_ := set .object "skip" true }}{{ end -}}
{{- if and .values.networkPolicy.apiServerCIDRs (eq .object.metadata.name "rightslice") -}}
{{- $from := list -}}
{{- range .values.networkPolicy.apiServerCIDRs }}{{ $from = append $from (dict "ipBlock" (dict "cidr" .)) }}{{ end -}}
{{- $_ := set (first .object.spec.ingress) "from" $from -}}
{{- end -}}
{{- end -}}
{{- end -}}
