// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Entry points. The same program runs at the ingress of every interface of the switch, or in
 * host mode of a node. XDP is a shortcut in front of tc, for drivers that have it.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#include "collect.h"
#include "control.h"
#include "host.h"

/* Handles a packet whose ports were not read. */
static __always_inline int steer_unread(void *ctx, const struct packet *p,
					enum parsed parsed, const bool xdp)
{
	if (may_be_stray_lease(ctx, p, xdp))
		return drop(COUNTER_control_interface, xdp);
	switch (parsed) {
	case PARSED_FRAGMENT:
		return steer_fragment(p, xdp);
	case PARSED_REFUSED:
		return steer_refused(p, xdp);
	case PARSED_TRUNCATED:
		return punt(COUNTER_punt_truncated, xdp);
	default:
		return pass(xdp);
	}
}

static __always_inline int steer(void *ctx, const bool xdp)
{
	enum parsed parsed;
	struct packet p;

	/* Host mode needs what XDP does not have. */
	if (xdp && host_mode)
		return pass(xdp);
	parsed = parse(ctx, &p, xdp);
	if (parsed == PARSED_OTHER)
		return pass(xdp);
	p.now_ns = coarse_ns();
	/* First, because most packets are TCP. */
	if (parsed == PARSED_TCP) {
		/* A request for a lease. */
		if (is_control(&p) && !is_from_nodes(ctx, xdp))
			return drop(COUNTER_control_interface, xdp);
		return host_mode ? host_tcp(ctx, &p, NULL) :
				   steer_tcp(ctx, &p, xdp);
	}
	switch (parsed) {
	case PARSED_UDP:
		return is_control(&p) ? answer_control(ctx, &p, xdp) : pass(xdp);
	case PARSED_ICMP:
		return steer_icmp(ctx, &p, xdp);
	case PARSED_FRAGMENT:
	case PARSED_REFUSED:
	case PARSED_LINK_LOCAL:
	case PARSED_TRUNCATED:
		return steer_unread(ctx, &p, parsed, xdp);
	case PARSED_TUNNEL:
		return host_mode && is_of_tunnel(ctx, &p) ?
			       host_arrived(ctx, &p) :
			       pass(xdp);
	case PARSED_TAGGED:
		return punt(xdp ? COUNTER_punt_xdp : COUNTER_punt_tagged, xdp);
	case PARSED_OVERTAGGED:
		return drop(COUNTER_drop_tagged, xdp);
	default:
		return pass(xdp);
	}
}

SEC("tc")
int prism_tc(struct __sk_buff *skb)
{
	return steer(skb, false);
}

SEC("xdp")
int prism_xdp(struct xdp_md *ctx)
{
	return steer(ctx, true);
}

SEC("tc")
int collect(struct __sk_buff *skb)
{
	for (__u32 i = 0; i < MAX_ORDERS; i++)
		if (!collect_one(skb, i))
			break;
	return 0;
}

/* Exports types that user space needs and no map has. */
struct exported {
	struct order order;
	enum flow_state flow_state;
	enum node_role node_role;
	enum order_kind order_kind;
	enum run_end run_end;
	enum counter counter;
	enum term_phase term_phase;
	enum control_op control_op;
	enum control_status control_status;
	enum flow_mark flow_mark;
};
const struct exported exported __attribute__((used)) = {};

char _license[] SEC("license") = "GPL";
