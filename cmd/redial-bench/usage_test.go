package main

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseStatm(t *testing.T) {
	pages, err := parseStatm("314202 3441 2219 2028 0 22950 0\n")
	require.NoError(t, err)
	assert.EqualValues(t, 3441, pages)
	for _, bad := range []string{"", "1", "1 x"} {
		_, err := parseStatm(bad)
		assert.Error(t, err, "%q", bad)
	}
}

func TestParent(t *testing.T) {
	for stat, want := range map[string]int{
		"12 (nginx) S 7 12 12 0 -1":             7,
		"12 (a) name) (of sorts) R 8 12 12 0":   8,
		"4242 (redial) S 1 4242 4242 0 -1 4194": 1,
	} {
		got, err := parent(stat)
		require.NoError(t, err, stat)
		assert.Equal(t, want, got, stat)
	}
	for _, bad := range []string{"", "12 nginx S 7", "12 (nginx)", "12 (nginx) S x"} {
		_, err := parent(bad)
		assert.Error(t, err, "%q", bad)
	}
}

func TestFamilyIsAProcessAndItsChildren(t *testing.T) {
	child := exec.Command("sleep", "60")
	require.NoError(t, child.Start())
	defer child.Wait()
	defer child.Process.Kill()
	pids, err := family(os.Getpid())
	require.NoError(t, err)
	assert.Equal(t, os.Getpid(), pids[0])
	assert.Contains(t, pids, child.Process.Pid)
}

func TestCPUTimeGrowsWithWork(t *testing.T) {
	us := []int{os.Getpid()}
	before, err := cpuTime(us)
	require.NoError(t, err)
	after := before
	for late := time.Now().Add(time.Minute); after == before && time.Now().Before(late); {
		after, err = cpuTime(us)
		require.NoError(t, err)
	}
	assert.Greater(t, after, before)
	gone := exec.Command("true")
	require.NoError(t, gone.Run())
	_, err = cpuTime([]int{gone.Process.Pid})
	assert.Error(t, err, "no such process")
}

func TestFootprintSeesDescriptors(t *testing.T) {
	us := []int{os.Getpid()}
	before, err := footprintOf(us)
	require.NoError(t, err)
	assert.Positive(t, before.Resident)
	var files []*os.File
	for range 10 {
		f, err := os.Open(os.DevNull)
		require.NoError(t, err)
		files = append(files, f)
	}
	after, err := footprintOf(us)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, after.FDs, before.FDs+10)
	for _, f := range files {
		f.Close()
	}
}
