package iptables

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"redial/proxy/intercept"
)

// packet is the first packet of a virtual connection.
type packet struct {
	hook  string // the built-in chain it passes
	to    intercept.VIP
	local bool // the destination is an address of the node
	mark  uint32

	from      netip.Addr // the zero value is in no prefix
	fromLocal bool       // from is an address of the node
	in        string     // the interface; "" in OUTPUT
}

// verdict is where a packet ended and how many rules it was compared with. "" means that it left our chains as it came,
// "DROP" that the filter table would end it.
type verdict struct {
	target string
	rules  int
}

// tracer follows packets through the text that would be restored.
type tracer struct {
	chains map[string][][]string
	filter string
}

func newTracer(r ruleset) tracer {
	t := tracer{map[string][][]string{}, restoreInput(r.filter, nil)}
	for line := range strings.Lines(restoreInput(r.nat, nil)) {
		if args := words(strings.TrimSpace(line)); args[0] == "-A" {
			t.chains[args[1]] = append(t.chains[args[1]], args[2:])
		}
	}
	return t
}

func (t tracer) trace(p packet) verdict {
	v := verdict{}
	v.target, _ = t.walk("REDIAL-"+p.hook, p, &v.rules)
	drop := fmt.Sprintf("-A REDIAL-INPUT -p %[1]s -m %[1]s --dport 9 -m conntrack --ctstate DNAT --ctdir ORIGINAL -j DROP\n", p.to.Protocol)
	if (strings.HasSuffix(v.target, " 9") || strings.HasSuffix(v.target, ":9")) && strings.Contains(t.filter, drop) {
		v.target = "DROP"
	}
	return v
}

func (t tracer) walk(chain string, p packet, count *int) (target string, done bool) {
	for _, rule := range t.chains[chain] {
		*count++
		matches, target, operand := match(rule, p)
		switch {
		case !matches:
		case target == "RETURN":
			return "", false
		case strings.HasPrefix(target, prefix):
			if end, done := t.walk(target, p, count); done {
				return end, true
			}
		default:
			return target + " " + operand, true
		}
	}
	return "", false
}

// match evaluates one rule; it knows every match that we render and panics on any other.
func match(rule []string, p packet) (matches bool, target, operand string) {
	matches = true
	for i := 0; i+1 < len(rule); i += 2 {
		arg := rule[i+1]
		switch rule[i] {
		case "-m", "--comment":
		case "-d":
			matches = netip.MustParsePrefix(arg).Contains(p.to.Addr)
		case "-s":
			matches = netip.MustParsePrefix(arg).Contains(p.from)
		case "-i":
			matches = matchesInterface(arg, p.in)
		case "--src-type":
			matches = arg == "LOCAL" && p.fromLocal
		case "-p":
			matches = arg == p.to.Protocol.String()
		case "--dport":
			low, high, ranged := strings.Cut(arg, ":")
			if !ranged {
				high = low
			}
			first, _ := strconv.Atoi(low)
			last, _ := strconv.Atoi(high)
			matches = first <= int(p.to.Port) && int(p.to.Port) <= last
		case "--mark":
			v, m, _ := strings.Cut(arg, "/")
			value, _ := strconv.ParseUint(v, 0, 32)
			mask, _ := strconv.ParseUint(m, 0, 32)
			matches = p.mark&uint32(mask) == uint32(value)
		case "--dst-type":
			matches = arg == "LOCAL" && p.local
		case "-j":
			target = arg
		case "--to-ports", "--to-destination":
			operand = arg
		default:
			panic("unknown match in " + strings.Join(rule, " "))
		}
		if !matches {
			return false, "", ""
		}
	}
	return matches, target, operand
}

func matchesInterface(pattern, name string) bool {
	if begin, wild := strings.CutSuffix(pattern, "+"); wild {
		return strings.HasPrefix(name, begin)
	}
	return pattern == name
}
