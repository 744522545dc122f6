// Filters prints what the filters of kube-scheduler make of a world: a line of JSON in, a line of JSON out.
//
// A world is {"objects": [...], "probes": [...], "configuration": {...}, "plugins": [...]}: the objects of a cluster,
// pods among them, further pods, the configuration of the scheduler if it is not the default one, and the plugins to
// run, "" for the whole scheduler; without them, all that reject nodes and the whole scheduler. The answer is
// {"pods": {name: {node: {plugin: [reason, ...]}}}, "allocations": {name: {node: allocation}}}: the plugins that reject
// each further pod on each node, every plugin by itself, and "" with the reasons of the whole scheduler if it rejects
// the pod there; and, if the world has DeviceClasses, the devices that the pod's claims would get there. No pod is bound.
//
// The scheduler is the real one with its own plugins, on informers that hold the objects and never change.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	"k8s.io/kubernetes/pkg/apis/resource/validation"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	registry "k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkplugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

// everyPlugin stands for the whole scheduler.
const everyPlugin = ""

// filterPlugins are the default plugins that reject nodes.
var filterPlugins = []string{
	"NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
	"VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity",
	"NodeDeclaredFeatures", names.DynamicResources,
}

// kinds are those of a world's objects.
var kinds = []apiruntime.Object{
	&v1.Node{}, &v1.Pod{}, &v1.Namespace{}, &v1.PersistentVolume{}, &v1.PersistentVolumeClaim{}, &v1.Service{},
	&appsv1.ReplicaSet{}, &storagev1.StorageClass{}, &storagev1.CSINode{}, &storagev1.CSIDriver{}, &storagev1.CSIStorageCapacity{},
	&resourcev1.ResourceSlice{}, &resourcev1.ResourceClaim{}, &resourcev1.DeviceClass{},
}

type world struct {
	Objects []json.RawMessage `json:"objects"`
	Probes  []json.RawMessage `json:"probes"`

	Configuration json.RawMessage `json:"configuration"`
	Plugins       []string        `json:"plugins"`
}

// rejections are reasons by node and plugin.
type rejections map[string]map[string][]string

// allocation is what DynamicResources makes of a pod on a node: an error, which ends scheduling of the pod on all nodes,
// the reason why it rejects the node, or the devices of each claim that is not allocated yet.
type allocation struct {
	Error    string                                       `json:"error,omitempty"`
	Rejected string                                       `json:"rejected,omitempty"`
	Claims   [][]resourcev1.DeviceRequestAllocationResult `json:"claims"`
}

type answer struct {
	Pods        map[string]rejections            `json:"pods"`
	Allocations map[string]map[string]allocation `json:"allocations,omitempty"`
}

func main() {
	klog.SetLogger(klog.Logger{})
	in, out := bufio.NewReaderSize(os.Stdin, 1<<20), bufio.NewWriter(os.Stdout)
	defer out.Flush()
	lines := make(chan chan []byte, 2*runtime.NumCPU())
	var printed sync.WaitGroup
	printed.Add(1)
	go func() {
		defer printed.Done()
		for line := range lines {
			out.Write(append(<-line, '\n'))
			out.Flush()
		}
	}()
	for {
		text, err := in.ReadBytes('\n')
		if len(text) == 0 || err != nil {
			break
		}
		line := make(chan []byte, 1)
		lines <- line
		go func() { line <- answered(text) }()
	}
	close(lines)
	printed.Wait()
}

// answered returns the answer to a world as JSON.
func answered(text []byte) []byte {
	var asked world
	if err := json.Unmarshal(text, &asked); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	objects, probes := decoded(asked.Objects), decoded(asked.Probes)
	for _, probe := range probes {
		objects = append(objects, ephemeralClaims(probe.(*v1.Pod))...)
	}
	sched := newScheduler(ctx, objects, profiles(configured(asked.Configuration), asked.Plugins))
	given := answer{Pods: map[string]rejections{}, Allocations: map[string]map[string]allocation{}}
	for _, probe := range probes {
		pod := probe.(*v1.Pod)
		given.Pods[pod.Name] = rejectionsOf(ctx, sched, pod)
		if slices.ContainsFunc(objects, isDeviceClass) {
			given.Allocations[pod.Name] = allocationsOf(ctx, sched.Profiles[names.DynamicResources], pod)
		}
	}
	return marshaled(given)
}

// ephemeralClaims returns the claims that a controller creates for the generic ephemeral volumes of a pod.
func ephemeralClaims(pod *v1.Pod) []apiruntime.Object {
	var claims []apiruntime.Object
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if volume.Ephemeral == nil {
			continue
		}
		claim := &v1.PersistentVolumeClaim{Spec: volume.Ephemeral.VolumeClaimTemplate.Spec}
		claim.Name, claim.Namespace = ephemeral.VolumeClaimName(pod, volume), pod.Namespace
		claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))}
		claim.Status.Phase = v1.ClaimPending
		claims = append(claims, claim)
	}
	return claims
}

func isDeviceClass(object apiruntime.Object) bool {
	_, is := object.(*resourcev1.DeviceClass)
	return is
}

// decoded returns objects with the defaults that the API server sets.
func decoded(texts []json.RawMessage) []apiruntime.Object {
	objects := make([]apiruntime.Object, 0, len(texts))
	for _, text := range texts {
		object := parsed(text)
		legacyscheme.Scheme.Default(object)
		if pod, ok := object.(*v1.Pod); ok {
			object = stored(pod)
		}
		validate(object)
		objects = append(objects, parsed(marshaled(object))) // quantities are canonical in the storage
	}
	return objects
}

func parsed(text []byte) apiruntime.Object {
	object, err := apiruntime.Decode(legacyscheme.Codecs.UniversalDeserializer(), text)
	if err != nil {
		log.Fatalf("%v: %s", err, text)
	}
	return object
}

func marshaled(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		log.Fatal(err)
	}
	return text
}

// stored returns a valid pod as the API server stores it: it merges label keys into selectors, for example.
func stored(pod *v1.Pod) *v1.Pod {
	ctx := genericapirequest.WithNamespace(context.Background(), pod.Namespace)
	internal := core.Pod{}
	convert(pod, &internal)
	status, deleted := internal.Status, internal.DeletionTimestamp
	registry.Strategy.PrepareForCreate(ctx, &internal)
	internal.Status = status
	internal.DeletionTimestamp = nil
	if errs := registry.Strategy.Validate(ctx, &internal); len(errs) > 0 {
		log.Fatalf("%s: %v", pod.Name, errs.ToAggregate())
	}
	internal.DeletionTimestamp = deleted
	found := v1.Pod{}
	convert(&internal, &found)
	found.TypeMeta = pod.TypeMeta
	return &found
}

// validate ends the program if the API server would not accept an object about devices.
func validate(object apiruntime.Object) {
	var errs field.ErrorList
	switch given := object.(type) {
	case *resourcev1.ResourceSlice:
		internal := resource.ResourceSlice{}
		convert(given, &internal)
		errs = validation.ValidateResourceSlice(&internal)
	case *resourcev1.ResourceClaim:
		internal := resource.ResourceClaim{}
		convert(given, &internal)
		errs = validation.ValidateResourceClaim(&internal)
	case *resourcev1.DeviceClass:
		internal := resource.DeviceClass{}
		convert(given, &internal)
		errs = validation.ValidateDeviceClass(&internal)
	}
	if len(errs) > 0 {
		log.Fatalf("%v: %s", errs.ToAggregate(), marshaled(object))
	}
}

func convert(from, to any) {
	if err := legacyscheme.Scheme.Convert(from, to, nil); err != nil {
		log.Fatal(err)
	}
}

// newScheduler returns a scheduler that has seen the objects.
func newScheduler(
	ctx context.Context, objects []apiruntime.Object, profiles []config.KubeSchedulerProfile,
) *scheduler.Scheduler {
	factory := informers.NewSharedInformerFactory(nil, 0)
	addObjects(factory, objects)
	recorders := profile.NewRecorderFactory(events.NewBroadcaster(nil))
	sched, err := scheduler.New(ctx, nil, factory, nil, recorders, scheduler.WithProfiles(profiles...))
	if err != nil {
		log.Fatal(err)
	}
	return sched
}

// configured returns the first profile of a configuration; of the default one without any.
func configured(text json.RawMessage) config.KubeSchedulerProfile {
	found, err := latest.Default()
	if err == nil && len(text) > 0 {
		_, _, err = scheme.Codecs.UniversalDecoder().Decode(text, nil, found)
	}
	if err != nil {
		log.Fatal(err)
	}
	return found.Profiles[0]
}

// profiles returns one for each plugin; without a selection the whole one, and one for each that rejects nodes.
func profiles(whole config.KubeSchedulerProfile, plugins []string) []config.KubeSchedulerProfile {
	found := []config.KubeSchedulerProfile{}
	if len(plugins) == 0 {
		plugins = append([]string{everyPlugin}, filterPlugins...)
	}
	known := frameworkplugins.NewInTreeRegistry()
	for _, name := range plugins {
		if name == everyPlugin {
			found = append(found, whole)
			continue
		}
		if known[name] == nil {
			continue // this version of Kubernetes does not have it yet
		}
		single := *whole.DeepCopy()
		single.SchedulerName = name
		single.Plugins = &config.Plugins{MultiPoint: config.PluginSet{
			Enabled: []config.Plugin{{Name: name}, {Name: "PrioritySort"}, {Name: "DefaultBinder"}},
		}}
		single.PluginConfig = argumentsOf(whole, name)
		found = append(found, single)
	}
	return found
}

func argumentsOf(whole config.KubeSchedulerProfile, name string) []config.PluginConfig {
	for _, each := range whole.PluginConfig {
		if each.Name == name {
			return []config.PluginConfig{each}
		}
	}
	return nil
}

// staticInformer holds objects and delivers them, sorted by name as in a list, as soon as a handler is added.
type staticInformer struct{ cache.SharedIndexInformer }

func (s staticInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandlerWithOptions(handler, cache.HandlerOptions{})
}

func (s staticInformer) AddEventHandlerWithOptions(
	handler cache.ResourceEventHandler, options cache.HandlerOptions,
) (cache.ResourceEventHandlerRegistration, error) {
	keys := s.GetIndexer().ListKeys()
	slices.Sort(keys)
	for _, key := range keys {
		object, _, _ := s.GetIndexer().GetByKey(key)
		handler.OnAdd(object, true)
	}
	return s.SharedIndexInformer.AddEventHandlerWithOptions(handler, options)
}

func (s staticInformer) HasSynced() bool { return true }

func addObjects(factory informers.SharedInformerFactory, objects []apiruntime.Object) {
	byKind := map[string]cache.Indexer{}
	for _, kind := range kinds {
		informer := cache.NewSharedIndexInformer(
			nil, kind, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		)
		factory.InformerFor(kind, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
			return staticInformer{informer}
		})
		byKind[fmt.Sprintf("%T", kind)] = informer.GetIndexer()
	}
	for _, object := range objects {
		indexer := byKind[fmt.Sprintf("%T", object)]
		if indexer == nil {
			log.Fatalf("no world has a %T", object)
		}
		if pod, ok := object.(*v1.Pod); ok && (pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed) {
			continue // the scheduler does not watch pods that have ended
		}
		if err := indexer.Add(object); err != nil {
			log.Fatal(err)
		}
	}
}

// rejectionsOf returns by which plugins, and why, each node rejects a pod.
func rejectionsOf(ctx context.Context, sched *scheduler.Scheduler, pod *v1.Pod) rejections {
	found := rejections{}
	for name, plugins := range sched.Profiles {
		if name == v1.DefaultSchedulerName {
			name = everyPlugin
		}
		snapshot := plugins.SnapshotSharedLister().(*schedulercache.Snapshot)
		if err := sched.Cache.UpdateSnapshot(klog.Background(), snapshot); err != nil {
			log.Fatal(err)
		}
		for node, reasons := range reasonsByNode(ctx, plugins, pod) {
			if found[node] == nil {
				found[node] = map[string][]string{}
			}
			found[node][name] = reasons
		}
	}
	return found
}

// reasonsByNode returns why the plugins of a profile reject a pod, by node, as Scheduler.findNodesThatFitPod does.
func reasonsByNode(ctx context.Context, plugins framework.Framework, pod *v1.Pod) map[string][]string {
	nodes, err := plugins.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		log.Fatal(err)
	}
	onEvery := func(reasons []string) map[string][]string {
		found := map[string][]string{}
		for _, node := range nodes {
			found[node.Node().Name] = reasons
		}
		return found
	}
	for _, plugin := range plugins.PreEnqueuePlugins() {
		if status := plugin.PreEnqueue(ctx, pod); !status.IsSuccess() {
			return onEvery(status.Reasons())
		}
	}
	state := framework.NewCycleState()
	chosen, status, _ := plugins.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		return onEvery(status.Reasons())
	}
	found := map[string][]string{}
	for _, node := range nodes {
		name := node.Node().Name
		if !chosen.AllNodes() && !chosen.NodeNames.Has(name) {
			found[name] = []string{"not among the nodes that PreFilter chose"}
			continue
		}
		if status := plugins.RunFilterPluginsWithNominatedPods(ctx, state, pod, node); !status.IsSuccess() {
			found[name] = status.Reasons()
		}
	}
	return found
}

// allocationsOf returns what the profile of DynamicResources makes of a pod, by node.
func allocationsOf(ctx context.Context, plugins framework.Framework, pod *v1.Pod) map[string]allocation {
	nodes, err := plugins.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		log.Fatal(err)
	}
	found := map[string]allocation{}
	for _, plugin := range plugins.PreEnqueuePlugins() {
		if status := plugin.PreEnqueue(ctx, pod); !status.IsSuccess() {
			for _, node := range nodes {
				found[node.Node().Name] = allocation{Rejected: status.Message()}
			}
			return found
		}
	}
	state := framework.NewCycleState()
	_, before, _ := plugins.RunPreFilterPlugins(ctx, state, pod)
	for _, node := range nodes {
		name, status := node.Node().Name, before
		if status.IsSuccess() {
			status = plugins.RunFilterPluginsWithNominatedPods(ctx, state, pod, node)
		}
		switch {
		case status.IsSuccess():
			found[name] = allocation{Claims: allocatedDevices(state, name)}
		case status.Code().String() == "Error":
			found[name] = allocation{Error: status.Message()}
		default:
			found[name] = allocation{Rejected: status.Message()}
		}
	}
	return found
}

// allocatedDevices returns the devices that Filter chose for each claim on a node, from the private state of the plugin.
func allocatedDevices(state *framework.CycleState, node string) [][]resourcev1.DeviceRequestAllocationResult {
	data, err := state.Read(names.DynamicResources)
	if err != nil {
		log.Fatal(err)
	}
	byNode := exported(reflect.ValueOf(data).Elem().FieldByName("nodeAllocations"))
	ofNode := byNode.MapIndex(reflect.ValueOf(node))
	if !ofNode.IsValid() {
		return nil // nothing had to be allocated
	}
	copied := reflect.New(ofNode.Type()).Elem()
	copied.Set(ofNode)
	results := exported(copied.FieldByName("allocationResults")).Interface().([]resourcev1.AllocationResult)
	claims := [][]resourcev1.DeviceRequestAllocationResult{}
	for _, each := range results {
		claims = append(claims, each.Devices.Results)
	}
	return claims
}

// exported returns a private field as one that can be read.
func exported(private reflect.Value) reflect.Value {
	return reflect.NewAt(private.Type(), unsafe.Pointer(private.UnsafeAddr())).Elem()
}
