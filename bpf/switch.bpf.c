// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Entry points. The same program runs at the ingress of every interface of the switch. XDP is
 * a shortcut in front of tc, for drivers that have it.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#include "collect.h"
#include "control.h"
#include "icmp.h"
#include "steer.h"

static __always_inline int steer(void *ctx, const bool xdp)
{
	struct packet p;
	enum parsed parsed = parse(ctx, &p, xdp);

	p.now_ns = coarse_ns();
	switch (parsed) {
	case PARSED_TCP:
		return steer_tcp(ctx, &p, xdp);
	case PARSED_UDP:
		return is_control(&p) ? answer_control(ctx, &p, xdp) : pass(xdp);
	case PARSED_ICMP:
		return steer_icmp(ctx, &p, xdp);
	case PARSED_FRAGMENT:
		return steer_fragment(&p, xdp);
	case PARSED_TRUNCATED:
		return punt(COUNTER_punt_truncated, xdp);
	case PARSED_OTHER:
		return pass(xdp);
	}
	return pass(xdp);
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
};
const struct exported exported __attribute__((used)) = {};

char _license[] SEC("license") = "GPL";
