package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"redial/config/kube"
	"redial/config/manifest"
	"redial/proxy"
	"redial/proxy/admin"
	"redial/proxy/relay"
)

// status is what the admin API answers and redial status prints.
type status struct {
	Version      string             `json:"version"`
	PID          int                `json:"pid"`
	Started      time.Time          `json:"started"`
	FDLimit      int                `json:"fdLimit"`
	Manifests    string             `json:"manifests"`
	Problems     []manifest.Problem `json:"problems,omitempty"` // of the manifests
	Following    *kube.Status       `json:"cluster,omitempty"`  // how far the source is with the Kubernetes API
	Interception string             `json:"interception"`
	ProxyPorts   string             `json:"proxyPorts"`
	IPTables     *steering          `json:"iptables,omitempty"`
	Local        *localSteering     `json:"local,omitempty"`
	Usage        relay.Usage        `json:"usage"`  // of what all Services share
	Totals       relay.Totals       `json:"totals"` // of all frontends, those that have been closed included
	proxy.Status
}

func statusCommand() *cobra.Command {
	opts := defaultOptions()
	output := ""
	cmd := &cobra.Command{
		Use:   "status [[NAMESPACE/]SERVICE...]",
		Short: "Show the Services, their addresses, backends and counters, and what is wrong",
		Long: `Asks the running proxy, over its admin socket, what it is doing.

One line per Service port and family: how clients reach it (addresses; *:PORT is a NodePort),
the local proxy port (shared: it is that of others too, for want of ports or descriptors),
whether clients are served or refused, usable of all backends, live
connections, connections since the start, how many of those needed a second backend, how many
failed or were refused, and what else deserves attention. Of UDP, live and total are sessions,
and failed are the datagrams that were lost. With a traffic policy Local there is a line more,
for the backends on this node: clients whom only other nodes could serve are dropped, so that
they try again. An address marked (node) is for clients on this node, (elsewhere) for all others.

-o wide adds the backends (weight, connections, failures, how long a connection takes, and of
those that are left out for their failures: since when, why, and when they are tested again), the
schedulers, what annotations ask for, and all counters that are not 0. Naming Services shows only these, so.
-o json has everything; counters have the same names there.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			if output != "" && output != "wide" && output != "json" {
				return fmt.Errorf("-o %q: want json or wide", output)
			}
			var raw json.RawMessage
			if err := admin.Get(cmd.Context(), opts.adminSocket, &raw); err != nil {
				return err
			}
			if output == "json" && len(names) == 0 {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", raw)
				return err
			}
			var s status
			if err := json.Unmarshal(raw, &s); err != nil {
				return fmt.Errorf("the proxy is of another version (%w): use -o json", err)
			}
			if err := s.only(names); err != nil {
				return err
			}
			if output == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(&s)
			}
			return s.print(cmd.OutOrStdout(), output == "wide" || len(names) > 0, time.Now())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", output, "json or wide")
	opts.addSocketFlag(cmd.Flags())
	return cmd
}

func (s *status) print(w io.Writer, wide bool, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s, pid %d, up %s, %s\n", s.Version, s.PID, now.Sub(s.Started).Round(time.Second), s.steering())
	if s.Sync.Error != "" {
		fmt.Fprintf(t, "LAST SYNC FAILED: %s\n", oneLine(s.Sync.Error))
	}
	if s.Following != nil {
		printFollowing(t, s.Following, now)
	}
	if s.IPTables != nil {
		s.IPTables.print(t)
	}
	if s.Local != nil {
		s.Local.print(t)
	}
	s.printUsage(t)
	s.printShared(t)
	t.Flush()
	fmt.Fprintln(t, "\nSERVICE\tPORT\tADDRESSES\tPROXY PORT\tCLIENTS\tBACKENDS\tLIVE\tTOTAL\tRETRIED\tFAILED\tNOTES")
	for i := range s.Services {
		s.printService(t, &s.Services[i])
	}
	t.Flush()
	if wide {
		fmt.Fprintln(t, "\nSERVICE\tPORT\tBACKEND\tSTATE\tWEIGHT\tLIVE\tTOTAL\tFAILED DIALS\tCONNECT\tLAST ERROR")
		for i := range s.Services {
			printBackends(t, &s.Services[i], now)
		}
		t.Flush()
		fmt.Fprintln(t, "\nSERVICE\tPORT\tSCHEDULER\tSETTINGS\tCOUNTERS")
		for i := range s.Services {
			printCounters(t, &s.Services[i])
		}
		t.Flush()
	}
	s.printProblems(w)
	return t.Flush()
}

func (s *status) steering() string {
	if s.IPTables == nil {
		return "interception " + s.Interception
	}
	return fmt.Sprintf("iptables %s (%s)", s.IPTables.Version, s.IPTables.Mode)
}

func (all *status) printService(w io.Writer, s *proxy.ServiceStatus) {
	name := s.Namespace + "/" + s.Name
	if s.Skipped != "" {
		fmt.Fprintf(w, "%s\t-\tskipped: %s\n", name, s.Skipped)
		return
	}
	if len(s.Ports) == 0 {
		fmt.Fprintf(w, "%s\t-\tno usable port\n", name)
	}
	for _, p := range s.Ports {
		if len(p.Fronts) == 0 {
			fmt.Fprintf(w, "%s\t%s\tnot served\n", name, portName(p))
		}
		for _, f := range p.Fronts {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d/%d\t%d\t%d\t%d\t%d\t%s\n", name, portName(p), all.addresses(f), proxyPort(f), clients(f),
				usableOf(f), len(f.Backends), f.Stats.Active, f.Stats.Accepted, f.Stats.Retried, failed(f.Stats), notes(p, f))
		}
	}
}

// clients tells what becomes of those who come to f.
func clients(f proxy.FrontendStatus) string {
	switch {
	case f.Serving:
		return "served"
	case slices.ContainsFunc(f.VIPs, func(v proxy.VIPStatus) bool { return v.Drops }):
		return "dropped"
	}
	return "refused"
}

// proxyPort is "-" where the proxy listens on the Service's own addresses.
func proxyPort(f proxy.FrontendStatus) string {
	switch port := strconv.Itoa(int(f.ProxyPort)); {
	case f.ProxyPort == 0:
		return "-"
	case f.Shared:
		return port + " shared"
	default:
		return port
	}
}

// printShared tells of proxy ports that are shared, if any.
func (s *status) printShared(w io.Writer) {
	frontends, strays := 0, uint64(0)
	for _, p := range s.Shared {
		frontends += p.Frontends
		strays += p.Strays
	}
	if len(s.Shared) > 0 {
		fmt.Fprintf(w, "%d frontends share %d proxy ports, for want of ports (%s) or descriptors (%d); %d connections were reset there as nobody's\n",
			frontends, len(s.Shared), s.ProxyPorts, s.FDLimit, strays)
	}
}

// failed counts what clients lost: connections, or datagrams.
func failed(s relay.Stats) uint64 {
	if s.Dropped+s.Overflows > 0 {
		return s.Dropped + s.Overflows
	}
	return s.Failed + s.NoBackend + s.Limited
}

func portName(p proxy.PortStatus) string {
	name := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	if p.Name != "" {
		name = p.Name + " " + name
	}
	return name
}

// addresses writes what clients can use as one would type it: the VIPs or, where nothing is steered, the listeners.
func (all *status) addresses(f proxy.FrontendStatus) string {
	if all.Interception == interceptNone {
		return strings.Join(f.Listen, ",")
	}
	var vips []string
	for _, v := range f.VIPs {
		address := v.Address
		if v.Kind == "NodePort" {
			address = fmt.Sprintf("*:%d", v.Port)
		}
		if v.From != "" {
			address += "(" + v.From + ")"
		}
		vips = append(vips, address)
	}
	return strings.Join(vips, ",")
}

func (s *status) printProblems(w io.Writer) {
	title := "\nPROBLEMS\n"
	say := func(format string, args ...any) {
		fmt.Fprintf(w, title+format+"\n", args...)
		title = ""
	}
	for _, p := range s.Problems {
		where := p.File
		if p.Document > 0 {
			where += fmt.Sprintf(", document %d", p.Document)
		}
		if p.Object != "" {
			where += " (" + p.Object + ")"
		}
		if p.Retained {
			where += ", last good version in force"
		}
		say("%s: %s", where, oneLine(p.Message))
	}
	for _, svc := range s.Services {
		for _, p := range svc.Problems {
			name := svc.Namespace + "/" + svc.Name
			if p.Port != "" {
				name += ":" + p.Port
			}
			say("%s: %s: %s", name, p.Reason, oneLine(p.Message))
		}
	}
}
