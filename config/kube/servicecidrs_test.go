package kube

import (
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func serviceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	c := &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	c.TypeMeta, c.ObjectMeta = meta1("ServiceCIDR", "networking.k8s.io/v1", name)
	c.Namespace = ""
	return c
}

// cidrs collects what FollowServiceCIDRs says.
type cidrs struct {
	mu    sync.Mutex
	last  string
	calls int
}

func (c *cidrs) changed(list []netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.calls = fmt.Sprint(list), c.calls+1
}

func (c *cidrs) is(want string) func() bool {
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.last == want
	}
}

// followCIDRs is a rig that runs and follows ServiceCIDRs.
func followCIDRs(t *testing.T, api *apiServer, change ...func(*Config)) (*rig, *cidrs) {
	api.listen()
	b, c := newRig(t, api, change...), &cidrs{}
	b.source.FollowServiceCIDRs(c.changed)
	return b.run(), c
}

func TestServiceCIDRs(t *testing.T) {
	for name, change := range map[string]func(*Config){"streamed": func(*Config) {}, "fetched": fetched} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			api.put("servicecidrs", serviceCIDR("kubernetes", "198.18.0.0/24", "2001:db8::/112"))
			b, c := followCIDRs(t, api, change)
			b.serves("default/web")
			require.True(t, c.is("[198.18.0.0/24 2001:db8::/112]")(), "they come first")

			api.put("servicecidrs", serviceCIDR("more", "198.18.9.0/24"))
			b.fact("one more", c.is("[198.18.0.0/24 198.18.9.0/24 2001:db8::/112]"))
			api.put("servicecidrs", serviceCIDR("again", "198.18.9.0/24"))
			api.put("servicecidrs", serviceCIDR("bad", "198.18.10.0", "198.18.11.0/24"))
			b.fact("what is right in it", c.is("[198.18.0.0/24 198.18.9.0/24 198.18.11.0/24 2001:db8::/112]"))
			require.Equal(t, 1, b.says("leaving out", "name:bad"))
			api.remove("servicecidrs", "/again", false)
			api.remove("servicecidrs", "/bad", false)
			b.fact("the other one has it too", c.is("[198.18.0.0/24 198.18.9.0/24 2001:db8::/112]"))
			require.Equal(t, 4, c.calls, "what changes nothing is not told")

			// Addresses of one that is being deleted may be in use.
			deleting := serviceCIDR("more", "198.18.9.0/24")
			deleting.DeletionTimestamp, deleting.Finalizers = &metav1.Time{Time: time.Now()}, []string{"networking.k8s.io/service-cidr-finalizer"}
			deleting.Status.Conditions = []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse}}
			api.put("servicecidrs", deleting)
			api.put("servicecidrs", serviceCIDR("next", "198.18.12.0/24"))
			b.fact("both", c.is("[198.18.0.0/24 198.18.9.0/24 198.18.12.0/24 2001:db8::/112]"))
			api.remove("servicecidrs", "/more", false)
			b.fact("it is gone", c.is("[198.18.0.0/24 198.18.12.0/24 2001:db8::/112]"))

			// Deleted while nobody watched.
			api.remove("servicecidrs", "/next", true)
			api.compact()
			api.drop()
			b.fact("the next list tells", c.is("[198.18.0.0/24 2001:db8::/112]"))
			require.Equal(t, "servicecidrs", b.source.Status().Resources[2].Resource)
			require.Equal(t, 1, b.source.Status().Resources[2].Objects)
		})
	}
}

// Where there are none to be had, that is one line, and Services are served.
func TestNoServiceCIDRs(t *testing.T) {
	for name, test := range map[string]struct {
		code   int
		reason metav1.StatusReason
		line   string
	}{
		"absent":    {http.StatusNotFound, metav1.StatusReasonNotFound, "before Kubernetes 1.33"},
		"forbidden": {http.StatusForbidden, metav1.StatusReasonForbidden, "may not be listed"},
		"broken":    {http.StatusInternalServerError, metav1.StatusReasonInternalError, "cannot be asked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			api.put("servicecidrs", serviceCIDR("kubernetes", "198.18.0.0/24"))
			var denied atomic.Bool
			denied.Store(true)
			api.refuse = func(w http.ResponseWriter, r *http.Request, what string) bool {
				if !denied.Load() || what != "list servicecidrs" {
					return false
				}
				fail(w, test.code, test.reason, "no such thing")
				return true
			}
			b, c := followCIDRs(t, api, func(c *Config) {
				c.limits.patience = time.Millisecond
				if name == "broken" {
					c.limits.optional = time.Second // a sixtieth of it
				}
			})
			b.serves("default/web")
			b.fact("it is tried again", func() bool { return api.count("list servicecidrs") > 3 })
			require.Equal(t, 1, b.says("servicecidrs"), "%v", b.said())
			require.Equal(t, 1, b.says("info", "no ServiceCIDRs", test.line, "--service-cidr", "no such thing"))
			require.Zero(t, c.calls)
			status := b.source.Status()
			require.Empty(t, status.Waiting)
			require.Empty(t, status.Error, "nothing is amiss")
			require.Len(t, status.Resources, 2)

			denied.Store(false)
			b.fact("they are here", c.is("[198.18.0.0/24]"))
		})
	}
}

// A server that does not answer about them does not hold up the Services.
func TestSilenceAboutServiceCIDRs(t *testing.T) {
	t.Parallel()
	api := web(t)
	asked, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	t.Cleanup(func() { close(goOn) })
	api.refuse = func(_ http.ResponseWriter, r *http.Request, what string) bool {
		if what != "list servicecidrs" {
			return false
		}
		once.Do(func() { close(asked) })
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
		return true
	}
	b, c := followCIDRs(t, api, func(c *Config) { c.limits.initial = time.Second })
	<-asked
	b.serves("default/web")
	require.Zero(t, c.calls)
}

func TestServiceCIDRsAreNotAskedForUnasked(t *testing.T) {
	t.Parallel()
	b := follow(t, web(t))
	b.serves("default/web")
	require.Zero(t, b.api.count("servicecidrs"))
}
