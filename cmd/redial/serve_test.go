package main

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"redial/proxy/relay"
)

// Whatever the relay counts is shown to Prometheus.
func TestNoCounterIsLeftOut(t *testing.T) {
	t.Parallel()
	var s relay.Stats
	in := reflect.ValueOf(&s).Elem()
	for i := range in.NumField() {
		if f := in.Field(i); f.CanInt() {
			f.SetInt(int64(i + 1))
		} else {
			f.SetUint(uint64(i + 1))
		}
	}
	traffic := trafficOf(s)
	out := reflect.ValueOf(&traffic).Elem()
	shown := map[uint64]bool{}
	for i := range out.NumField() {
		f := out.Field(i)
		if f.CanInt() {
			shown[uint64(f.Int())] = true
		} else {
			shown[f.Uint()] = true
		}
		assert.False(t, f.IsZero(), "metrics.Traffic.%s", out.Type().Field(i).Name)
	}
	for i := range in.NumField() {
		assert.True(t, shown[uint64(i+1)], "relay.Stats.%s", in.Type().Field(i).Name)
	}
}
