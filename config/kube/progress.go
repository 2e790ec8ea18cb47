package kube

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// progress is how far the following of all resources has got. It owns the log lines about outages: one outage is one line
// when it begins, one when it lasts, and one when it is over, however many requests fail meanwhile.
type progress struct {
	log      *logrus.Entry
	patience time.Duration

	mu        sync.Mutex
	resources []*resource
	// outage is when the first of the resources that fail now began to; zero while none does.
	outage time.Time
	remind *time.Timer
}

// resource is the progress of one resource. Its fields are guarded by progress.mu.
type resource struct {
	all     *progress
	name    string
	listed  time.Time // last list handed over
	event   time.Time // last sign of life: list, event or bookmark
	objects int
	err     error // of the last request, while it fails
	since   time.Time
	// optional: nothing waits for it.
	optional bool
}

func (p *progress) add(name string) *resource {
	r := &resource{all: p, name: name}
	p.admit(r)
	return r
}

// admit has a resource shown from now on.
func (p *progress) admit(r *resource) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resources = append(p.resources, r)
}

// start has it said what is waited for if that takes too long, even when nothing fails.
func (p *progress) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remindLater()
}

func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remind.Stop()
}

// remindLater needs p.mu.
func (p *progress) remindLater() {
	if p.remind != nil {
		p.remind.Stop()
	}
	p.remind = time.AfterFunc(p.patience, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		waiting, err := p.waiting(), p.lastError()
		if len(waiting) == 0 && err == nil {
			return
		}
		log := p.log
		if err != nil {
			log = log.WithError(err)
		}
		if len(waiting) > 0 {
			log.WithField("waiting", strings.Join(waiting, ", ")).
				Warn("still waiting for the Kubernetes API: nothing is changed on this node before all of it is here")
			return
		}
		log.Warn("still without the Kubernetes API: serving what was known last")
	})
}

// waiting needs p.mu. It names the resources without a first list that it takes.
func (p *progress) waiting() []string {
	var out []string
	for _, r := range p.resources {
		if r.listed.IsZero() && !r.optional {
			out = append(out, r.name)
		}
	}
	return out
}

// lastError needs p.mu.
func (p *progress) lastError() error {
	for _, r := range p.resources {
		if r.err != nil {
			return r.err
		}
	}
	return nil
}

// failed records that a request could not be made, or was refused.
func (r *resource) failed(verb string, err error) {
	err = explain(verb, r.name, err)
	p := r.all
	p.mu.Lock()
	defer p.mu.Unlock()
	before := r.err
	r.err = err
	if before == nil {
		r.since = time.Now()
	}
	switch {
	case p.outage.IsZero():
		p.outage = r.since
		p.remindLater()
	case needsOwner(err) && !needsOwner(before):
		// Behind an outage that passes by itself there may be one that does not.
	default:
		p.log.WithError(err).WithField("resource", r.name).Debug("trying the Kubernetes API again")
		return
	}
	p.log.WithError(err).WithField("resource", r.name).
		Warn("cannot follow the Kubernetes API: going on with what is known, and trying again")
}

// follows records that changes arrive, which is more than that a list did.
func (r *resource) follows() {
	p := r.all
	p.mu.Lock()
	defer p.mu.Unlock()
	r.event = time.Now()
	r.err, r.since = nil, time.Time{}
	if p.outage.IsZero() || p.lastError() != nil {
		return
	}
	p.log.WithField("after", time.Since(p.outage).Round(time.Millisecond).String()).Info("following the Kubernetes API again")
	p.outage = time.Time{}
}

// rename is for the endpoints, of which it is found out late what they are.
func (r *resource) rename(name string) {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	r.name = name
}

// seen records a sign of life.
func (r *resource) seen() {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	r.event = time.Now()
}

// holds records how many objects are known; whole means that they come from a list.
func (r *resource) holds(objects int, whole bool) {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	r.objects, r.event = objects, time.Now()
	if whole {
		r.listed = r.event
	}
}

// needsOwner reports whether trying again is not enough.
func needsOwner(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// explain says what was being done, and what to do where trying again does not help.
func explain(verb, resource string, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("not allowed to %s %s in the whole cluster: %w: grant it, most simply by a ClusterRoleBinding "+
			"to the ClusterRole system:node-proxier", verb, resource, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("to %s %s: the API server does not accept the credentials: %w: renew the kubeconfig or the token",
			verb, resource, err)
	}
	return fmt.Errorf("to %s %s: %w", verb, resource, err)
}
