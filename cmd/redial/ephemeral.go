package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/sirupsen/logrus"

	"redial/proxy/intercept"
)

// nodePorts is the API server's default --service-node-port-range.
var nodePorts = intercept.PortRange{First: 30000, Last: 32767}

// warnOfSharedPorts says where the proxy ports overlap with ports that others may take at any time. The proxy then moves
// to another port, but a client that found its port taken by ours has no such choice.
func warnOfSharedPorts(ports intercept.PortRange, log *logrus.Entry) {
	if ports.Overlaps(nodePorts) {
		log.WithFields(logrus.Fields{"proxyPorts": ports, "nodePorts": nodePorts}).Warn("proxy ports overlap with the usual NodePorts: choose another --proxy-port-range")
	}
	ephemeral, err := readEphemeral("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil || !ports.Overlaps(ephemeral) {
		return
	}
	reserved, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports")
	if strings.Contains(string(reserved), ports.String()) {
		return
	}
	log.WithFields(logrus.Fields{"proxyPorts": ports, "ephemeral": ephemeral}).Warn(
		"proxy ports overlap with the kernel's ephemeral ports: choose another --proxy-port-range, or reserve it in net.ipv4.ip_local_reserved_ports")
}

func readEphemeral(path string) (intercept.PortRange, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return intercept.PortRange{}, err
	}
	var r intercept.PortRange
	if _, err := fmt.Sscan(string(b), &r.First, &r.Last); err != nil {
		return intercept.PortRange{}, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}
