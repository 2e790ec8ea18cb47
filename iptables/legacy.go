package iptables

import (
	"encoding/binary"
	"hash/maphash"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The sockopts that iptables-legacy reads tables by (linux/netfilter_ipv4/ip_tables.h, the same for IPv6).
const (
	getInfo    = 64 // IPT_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES
)

// tableInfo is struct ipt_getinfo.
type tableInfo struct {
	name       [32]byte
	validHooks uint32
	hookEntry  [5]uint32
	underflow  [5]uint32
	entries    uint32
	size       uint32
}

// entriesHeader is the size of struct ipt_get_entries before the entries: the name, the size, and padding.
const entriesHeader = 40

// entryLayout says where a rule (struct ipt_entry, ip6t_entry) has what differs without its being another, and its length.
type entryLayout struct{ next, comefrom, counters, size int }

var (
	entryLayout4 = entryLayout{next: 90, comefrom: 92, counters: 96, size: 112}
	entryLayout6 = entryLayout{next: 142, comefrom: 144, counters: 152, size: 168}
)

var legacySeed = maphash.MakeSeed()

// legacyGeneration stands in for a generation where the kernel does not count changes: it is a hash of all rules in the
// tables that we write to, without their counters. It takes a twentieth of the time that iptables-legacy-save takes to
// show them, and is anybody's as well as ours: when it is the same, so are the rules. It does not count: how many writes there
// were cannot be told.
func legacyGeneration(v6 bool) (uint32, bool) {
	family, level, layout := unix.AF_INET, unix.IPPROTO_IP, entryLayout4
	if v6 {
		family, level, layout = unix.AF_INET6, unix.IPPROTO_IPV6, entryLayout6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	var h maphash.Hash
	h.SetSeed(legacySeed)
	for _, table := range ourTables {
		if !hashTable(&h, fd, level, table, layout) {
			return 0, false
		}
	}
	sum := h.Sum64()
	return uint32(sum) ^ uint32(sum>>32), true
}

// hashTable returns false if the table cannot be read, as when it has been changed between two calls.
func hashTable(h *maphash.Hash, fd, level int, table string, layout entryLayout) bool {
	var info tableInfo
	copy(info.name[:], table)
	if !getsockopt(fd, level, getInfo, unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info))) {
		return false
	}
	// Not on the heap, where megabytes of garbage would have it looked through each time.
	buffer, err := unix.Mmap(-1, 0, entriesHeader+int(info.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return false
	}
	defer unix.Munmap(buffer)
	copy(buffer, table)
	binary.NativeEndian.PutUint32(buffer[len(info.name):], info.size)
	return getsockopt(fd, level, getEntries, buffer) && hashEntries(h, buffer[entriesHeader:], layout)
}

// hashEntries returns false if these are no entries.
func hashEntries(h *maphash.Hash, entries []byte, layout entryLayout) bool {
	for len(entries) > 0 {
		if len(entries) < layout.size {
			return false
		}
		next := int(binary.NativeEndian.Uint16(entries[layout.next:]))
		if next < layout.size || next > len(entries) {
			return false
		}
		h.Write(entries[:layout.comefrom])
		h.Write(entries[layout.counters+16 : next])
		entries = entries[next:]
	}
	return true
}

func getsockopt(fd, level, option int, value []byte) bool {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	return errno == 0
}
