// Quotas prints what the API server's quota admission makes of new objects: a line of JSON in, a line of JSON out.
//
// A line is {"objects": [...], "creates": {name: [object, ...]}}: the quotas of a namespace with their status, the
// DeviceClasses, and objects to create one after the other, pods or ResourceClaims. The answer is
// {name: {"messages": [message, ...], "used": {quota: {key: amount}}}}: "" for each object that the quotas admit, or why
// they reject it, and what is used then. Every name starts with the quotas as they are.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	quota "k8s.io/apiserver/pkg/quota/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/utils/clock"
)

type question struct {
	Objects []json.RawMessage            `json:"objects"`
	Creates map[string][]json.RawMessage `json:"creates"`
}

type answer struct {
	Messages []string                   `json:"messages"`
	Used     map[string]v1.ResourceList `json:"used"`
}

// namespace is what quota admission knows: its quotas, the classes of devices, and the pods that it has admitted.
type namespace struct {
	quotas  []v1.ResourceQuota
	classes *extendedresourcecache.ExtendedResourceCache
	pods    cache.Indexer
}

func main() {
	klog.SetLogger(klog.Logger{})
	in, out := bufio.NewReaderSize(os.Stdin, 1<<20), bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for {
		text, err := in.ReadBytes('\n')
		if len(text) == 0 || err != nil {
			return
		}
		out.Write(append(answered(text), '\n'))
	}
}

// answered returns the answer to a question as JSON.
func answered(text []byte) []byte {
	var asked question
	if err := json.Unmarshal(text, &asked); err != nil {
		log.Fatal(err)
	}
	given := map[string]answer{}
	for name, creates := range asked.Creates {
		found := newNamespace(asked.Objects)
		one := answer{Used: map[string]v1.ResourceList{}}
		for _, each := range creates {
			one.Messages = append(one.Messages, found.created(decoded(each)))
		}
		for _, each := range found.quotas {
			one.Used[each.Name] = each.Status.Used
		}
		given[name] = one
	}
	line, err := json.Marshal(given)
	if err != nil {
		log.Fatal(err)
	}
	return line
}

func newNamespace(objects []json.RawMessage) *namespace {
	found := &namespace{
		classes: extendedresourcecache.NewExtendedResourceCache(klog.Background()),
		pods:    cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
	}
	for _, text := range objects {
		switch object := decoded(text).(type) {
		case *v1.ResourceQuota:
			found.quotas = append(found.quotas, *object)
		case *resourcev1.DeviceClass:
			found.classes.OnAdd(object, true)
		default:
			log.Fatalf("no namespace has a %T", object)
		}
	}
	return found
}

// decoded returns an object with the defaults that the API server sets.
func decoded(text []byte) apiruntime.Object {
	object, err := apiruntime.Decode(legacyscheme.Codecs.UniversalDeserializer(), text)
	if err != nil {
		log.Fatalf("%v: %s", err, text)
	}
	legacyscheme.Scheme.Default(object)
	return object
}

// created charges the quotas with a new object; it returns why they reject it, or "".
func (n *namespace) created(object apiruntime.Object) string {
	about, err := meta.Accessor(object)
	if err != nil {
		log.Fatal(err)
	}
	evaluator, resource := n.evaluatorOf(object)
	attributes := admission.NewAttributesRecord(
		object, nil, object.GetObjectKind().GroupVersionKind(), about.GetNamespace(), about.GetName(), resource, "",
		admission.Create, nil, false, nil,
	)
	charged, err := resourcequota.CheckRequest(n.quotas, attributes, evaluator, nil)
	if err != nil {
		return err.Error()
	}
	n.quotas = charged
	if pod, ok := object.(*v1.Pod); ok {
		if err := n.pods.Add(pod); err != nil {
			log.Fatal(err)
		}
	}
	return ""
}

func (n *namespace) evaluatorOf(object apiruntime.Object) (quota.Evaluator, schema.GroupVersionResource) {
	if _, ok := object.(*v1.Pod); ok {
		return core.NewPodEvaluator(nil, clock.RealClock{}), v1.SchemeGroupVersion.WithResource("pods")
	}
	earlier := func(string, types.UID) ([]*resourcev1.ResourceClaim, error) { return nil, nil }
	evaluator := core.NewResourceClaimEvaluator(nil, n.classes, listers.NewPodLister(n.pods), earlier)
	return evaluator, resourcev1.SchemeGroupVersion.WithResource("resourceclaims")
}
