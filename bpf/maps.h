// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The maps of the programs. Addresses take 16 bytes everywhere, so both families have one
 * layout.
 */
#ifndef PRISM_MAPS_H
#define PRISM_MAPS_H

#include "addr.h"
#include "counters.h"

/* Sizes that the loader may change; see SwitchConfig. */
#define DEFAULT_MAX_FLOWS 1048576
#define MAX_SERVICES 1024
#define MAX_NODES 4096
#define MAX_TENANTS 1024
/* The tenant of a frontend of several services. Its own sockets have the services' addresses. */
#define ALL_TENANTS 0xffffffff
/* Services of one tenant: 16 addresses with two ports. An owner's packet may need a lookup
 * for each of its family. */
#define MAX_TENANT_SERVICES 32
#define MAX_FRONTENDS 16
#define MAX_ENDED_RUNS 4096
/* Recorded closing connections: those of 100 ms at 160,000 a second. */
#define MAX_CLOSINGS 16384
/* Next hops cached per CPU; a power of two. */
#define NEXTHOP_SLOTS 1024
/* Hints of services cached per CPU; a power of two. */
#define HINT_SLOTS 4096

/* 36 bytes without padding; four more would need another round of the hash function. */
struct flow_key {
	struct ip_addr client;
	struct ip_addr vip;
	__be16 client_port;
	__be16 vip_port;
};

/* Further properties of a flow. */
enum flow_mark {
	MARK_RELEASED = 1,	/* absent: its owner's socket is gone */
	MARK_DOOMED = 2,	/* absent, and final: about to be deleted */
	MARK_CLOSED = 4,	/* the owner's FIN has passed: the client knows */
	MARK_CLOSE_KNOWN = 8,	/* the client has acknowledged that FIN */
	MARK_CLIENT_CLOSED = 16,	/* the client's FIN has passed */
	MARK_CHALLENGED = 32,	/* a SYN has gone to the owner since the last command */
	MARK_GENERATION = 192,	/* of the term of the last command; see term.h */
};
#define GENERATION_SHIFT 6

/* The marks that belong to one connection. */
#define CLOSE_MARKS (MARK_CLOSED | MARK_CLOSE_KNOWN | MARK_CLIENT_CLOSED)

/*
 * One flow. With these 96 bytes an element (48 bytes of kernel header, 40 of key, 8 of
 * allocator) fills a 192-byte slab object exactly.
 *
 * The entry of an absent flow is its tombstone, and has its epoch. Only the agent deletes
 * entries, in two steps (collect.h), so that no program locks or writes an element that the
 * kernel has given to another flow.
 */
struct flow {
	struct bpf_spin_lock lock;
	__u8 state;		/* enum flow_state */
	__u8 marks;		/* of enum flow_mark; written under the lock only */
	__be16 owner_port;
	__u64 epoch;
	struct ip_addr owner;
	struct ip_addr via;
	__u64 last_seen_ns;	/* CLOCK_MONOTONIC of the last packet or command */
	__u16 version;		/* odd while the fields above change; see flow.h */
	__be16 owner_run;	/* run of the owner's node; 0: unknown */
	__u32 next_seq;		/* that the client expects; valid with packets[TO_CLIENT] */
	__u64 packets[2];	/* by enum direction */
	__u64 bytes[2];
};
_Static_assert(sizeof(struct flow) == 96, "flow");
_Static_assert(sizeof(struct flow_key) == 36, "flow_key");

enum direction {
	TO_OWNER = 0,
	TO_CLIENT = 1,
};

/*
 * The epoch of all flows without entry: the greatest epoch of the tombstones that were
 * deleted. So a late command stays outdated after its flow's tombstone is deleted.
 */
struct collected {
	struct bpf_spin_lock lock;	/* taken to write */
	__u32 zero;
	__u64 epoch;
};

enum term_phase {
	TERM_NONE = 0,		/* no agent has begun a term: epochs alone decide */
	TERM_STANDBY = 1,	/* another switch decides */
	TERM_YOUNG = 2,		/* not all flows are known */
	TERM_SETTLED = 3,
};

/* The part that programs read in one load. */
struct term {
	__u32 number;
	__u8 phase;		/* enum term_phase */
	__u8 generation;	/* of the flows that are known in this term; 0 to 3 */
	__u16 zero;
} ALIGNED;

/* The agent's term (prism_proto::term). */
struct term_state {
	struct term now;
	__u64 settled_ns;	/* CLOCK_MONOTONIC when the term settled, or was over */
};
_Static_assert(sizeof(struct term) == 8, "term");

enum closing_mark {
	/* MARK_CLOSED, MARK_CLIENT_CLOSED, and: */
	CLOSING_ANSWERED = 256,	/* the frontend has answered the SYN */
	CLOSING_OPEN = 512,	/* the client has acknowledged that answer */
};

/*
 * A connection that has no flow, or had none when it began: its end, and its frontend if it
 * was opened in a young term, while the list of frontends changed, or while a flow of a
 * frontend was live.
 */
struct closing {
	__u32 end_seq;		/* behind the frontend's FIN, if that has passed */
	__u32 marks;		/* enum closing_mark */
	struct ip_addr frontend;	/* that its SYN went to; zero: not recorded */
	__u32 young_term;	/* in which its SYN came; 0: in none */
	__u32 open_seq;		/* behind the frontend's answer */
	__u64 since_ns;		/* CLOCK_TAI of that SYN */
};

/* One run of a node, as its commands name it. */
struct run_key {
	struct ip_addr node;
	__be16 run;
	__u16 zero;
};

enum run_end {
	RUN_DIED = 1,		/* its clients will be reset */
	RUN_LEFT = 2,		/* in order: its sockets finish by themselves */
};

struct ended_run {
	__u64 since_ns;		/* CLOCK_MONOTONIC */
	__u32 end;		/* enum run_end */
	__u32 zero;
};

/*
 * The service of an earlier packet of an owner to this client, or to any if the client is zero;
 * all zeros: none.
 */
struct owner_hint {
	struct ip_addr vip;
	__u32 owner;		/* words of addresses; see addr_word */
	__u32 client;
	__be16 owner_port;
	__be16 client_port;
	__be16 vip_port;
	__u16 is_mixed;		/* the owner has flows of several services */
};

struct service_key {
	struct ip_addr addr;
	__be16 port;		/* 0: the mark of a service's address */
	__u16 zero;
};

struct frontends {
	__u32 count;
	__u32 zero;
	struct ip_addr list[MAX_FRONTENDS];
};

/* While the list of frontends changes, older connections go by the former list. */
struct service {
	__u32 tenant;
	__u32 zero;
	__u64 former_until_ns;	/* CLOCK_MONOTONIC */
	struct frontends now;
	struct frontends former;
};

/* The services that an owner's packet may belong to. */
struct tenant {
	__u32 service_count;
	struct service_key services[MAX_TENANT_SERVICES];
};

enum node_role {
	ROLE_FRONTEND = 1,
	ROLE_BACKEND = 2,
	ROLE_FORMER = 4,	/* no node any more; its flows go on */
	ROLE_HERE = 8,		/* host mode: it is this host */
};

/* One bit for each port, in network order: whether any service uses it. */
struct service_ports {
	__u64 word[1024];
};

struct node {
	__u32 tenant;
	__u32 roles;
	__u32 ifindex;		/* not 0: the next hop is configured, not looked up */
	__u32 mtu_bytes;	/* with ifindex; 0: not checked */
	__u16 node_mac[3];
	__u16 own_mac[3];
};

struct nexthop {
	__u64 expires_ns;
	__u64 confirm_ns;	/* time to confirm the neighbour; 0: not known */
	struct ip_addr addr;
	struct ip_addr gateway;	/* `addr` if there is none */
	__u32 ifindex;
	__u32 mtu_bytes;
	__u32 mac[3];		/* destination and source, as in a frame */
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, DEFAULT_MAX_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct collected);
} collected SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct term_state);
} term_state SEC(".maps");

/* The oldest entries make room, and a SYN removes its own. It is empty after a load. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_CLOSINGS);
	__type(key, struct flow_key);
	__type(value, struct closing);
} closings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SERVICES);
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service_ports);
} service_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NODES);
	__type(key, struct ip_addr);
	__type(value, struct node);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TENANTS);
	__type(key, __u32);
	__type(value, struct tenant);
} tenants SEC(".maps");

/* Runs that the agent knows to have ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ENDED_RUNS);
	__type(key, struct run_key);
	__type(value, struct ended_run);
} ended_runs SEC(".maps");

/* The flows by their owner's node, as a walk of the agent counts them. Address zero has the
 * tombstones. Each agent has a map of its own. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2 * MAX_NODES);
	__type(key, struct ip_addr);
	__type(value, __u64);
} census SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTER_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NEXTHOP_SLOTS);
	__type(key, __u32);
	__type(value, struct nexthop);
} nexthops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, HINT_SLOTS);
	__type(key, __u32);
	__type(value, struct owner_hint);
} owner_hints SEC(".maps");

/* The coarse clock, and the tick at which it was read. */
struct tick {
	__u64 jiffies;
	__u64 ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tick);
} ticks SEC(".maps");

/*
 * An update of a map of maps from user space waits until every running program has ended
 * (maybe_wait_bpf_programs in kernel/bpf/syscall.c). The agent uses these two maps for that
 * only.
 */
struct grace_inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} grace_inner SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct grace_inner);
} grace SEC(".maps") = { .values = { &grace_inner } };

/*
 * The addresses that commands are sent to, one of each family: those that decide, and the own ones
 * of a host of a pair, for copies. Zero: none. Set by the loader.
 */
#define CONTROL_ADDRS 4
const volatile struct ip_addr control_addrs[CONTROL_ADDRS] ALIGNED = {};
const volatile __be16 control_port = 0;

/* Limits of the control protocol. Set by the loader, from prism_proto. */
const volatile __u64 freshness_ns = 0;
const volatile __u64 max_epoch_ahead_ns = 0;
const volatile __u64 max_epoch_step = 0;
/* Epochs from here on are no times; announcements are below. */
const volatile __u64 max_epoch = 0;

/*
 * Host mode: the program runs at the nodes' own interfaces, not at a switch; and whether this host
 * is a frontend. Set by the loader.
 */
const volatile bool host_mode = false;
const volatile bool accepts_clients = false;

/* The upper half of the marks of frozen sockets (prism_sys::tcp::FROZEN_MARKS). Set by the loader. */
const volatile __u32 frozen_marks = 0;

/*
 * Host mode across routers: the longest IP packet between nodes, and this host's addresses of
 * IPv4 and IPv6. 0: all nodes are on one segment. Set by the loader.
 */
const volatile __u32 tunnel_mtu_bytes = 0;
const volatile struct ip_addr own_addrs[2] ALIGNED = {};

/* Whether the CPU keeps loads in order, and stores, as x86 does. Set by the loader. */
const volatile bool has_ordered_memory = false;

/* The time for which a next hop is cached. */
const volatile __u64 nexthop_ttl_ns = 1000000000ULL;
/*
 * The period in which one packet to each next hop goes through the kernel, which then checks
 * the neighbour. Packets that the program sends itself do not make it check. Set by the
 * loader.
 */
const volatile __u64 nexthop_confirm_ns = 4ULL * 1000000000;

/* The limits by which the agent ends flows. Set by the loader. */
const volatile __u64 idle_ns = 0;
const volatile __u64 blocked_ns = 0;
const volatile __u64 tombstone_ns = 0;
const volatile __u64 died_ns = 0;
const volatile __u64 left_ns = 0;
/* The time after which a standby forgets a flow that was not copied again. */
const volatile __u64 copied_ns = 0;

/*
 * The time after which a frontend that is not the arbiter sends it a packet of a live socket again
 * (host.h). The arbiter waits for so much longer before it takes a flow for idle.
 */
static __always_inline __u64 unseen_ns(void)
{
	return tunnel_mtu_bytes ? idle_ns / 4 : 0;
}

/*
 * CLOCK_MONOTONIC at the last tick. A call of the kernel takes more than a tenth of a
 * packet's time; the number of the tick is a single load.
 */
static __always_inline __u64 coarse_ns(void)
{
	__u64 now = bpf_jiffies64();
	__u32 zero = 0;
	struct tick *tick = bpf_map_lookup_elem(&ticks, &zero);

	if (!tick)
		return bpf_ktime_get_coarse_ns();
	if (tick->jiffies != now) {
		tick->ns = bpf_ktime_get_coarse_ns();
		tick->jiffies = now;
	}
	return tick->ns;
}

static __always_inline void count(__u32 reason)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &reason);

	if (value)
		*value += 1;
}

#endif
