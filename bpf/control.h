// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The control protocol (docs/protocol.md, section 1). Requests are parsed, authenticated and
 * answered here, in the packet itself. command.h applies commands to flows.
 */
#ifndef PRISM_CONTROL_H
#define PRISM_CONTROL_H

#include "command.h"
#include "forward.h"
#include "siphash.h"

#define CONTROL_BYTES sizeof(struct control_message)
#define CONTROL_AT (HEAD_BYTES + sizeof(struct udphdr))
#define CONTROL_UDP_BYTES (sizeof(struct udphdr) + CONTROL_BYTES)
#define CONTROL_IP_BYTES (sizeof(struct iphdr) + CONTROL_UDP_BYTES)
#define CONTROL_TTL 64

/* Decides on an authentic request, in the order of section 1.4. */
static __always_inline __u8 decide(struct control_scratch *s,
				   const struct packet *p, __u32 tenant,
				   __u64 clock_ns, struct flow_view *view)
{
	const struct control_message *m = &s->request;
	struct flow_key key = {
		.client = m->client_addr,
		.vip = m->vip_addr,
		.client_port = m->client_port,
		.vip_port = m->vip_port,
	};
	__u8 allowed = authorize(m, &key, tenant);
	__u8 refused = 0;

	if (!is_fresh(bpf_be64_to_cpu(m->time_ns), clock_ns))
		refused = STATUS_LATE;
	else if (!is_request_valid(m))
		refused = STATUS_BAD_REQUEST;
	else if (!m->ops && has_no_flow(m))
		refused = STATUS_OK;
	else if (allowed != STATUS_APPLY)
		refused = allowed;
	if (!refused)
		return apply(s, &key, p->now_ns, clock_ns, view);
	/* The answer tells the sender about its own tenant's flows only. */
	if (allowed == STATUS_APPLY) {
		struct flow *f = flow_find(&key);

		if (f)
			view_now(f, view);
		else
			view->epoch = unknown_epoch();
	}
	return refused;
}

static __always_inline void fill_answer(struct control_scratch *s, __u8 status,
					__u64 clock_ns,
					const struct flow_view *view,
					const struct sender *sender)
{
	struct control_message *a = &s->answer;

	__builtin_memcpy(a, &s->request, sizeof(*a));
	a->kind = CONTROL_ANSWER;
	a->status = status;
	a->state = view->state;
	__builtin_memset(a->zero1, 0, sizeof(a->zero1));
	a->owner_run = 0;
	a->time_ns = bpf_cpu_to_be64(clock_ns);
	a->epoch = bpf_cpu_to_be64(view->epoch);
	a->owner_addr = view->owner;
	a->via_addr = view->via;
	a->owner_port = view->owner_port;
	a->mac = control_mac(a, sender);
}

/* Turns the headers of a request into those of its answer. */
static __always_inline long turn_head(void *ctx, struct packet *p,
				      const bool xdp)
{
	struct head *h = &p->head;
	__be16 before = *(__be16 *)&h->ip.ttl;
	__be32 addr = h->ip.saddr;
	__u16 check = h->ip.check;
	__u16 mac[6];
	long err = packet_load(ctx, 0, mac, sizeof(mac), xdp);

	__builtin_memcpy(&h->mac[0], &mac[3], ETH_ALEN);
	__builtin_memcpy(&h->mac[3], &mac[0], ETH_ALEN);
	h->protocol = bpf_htons(ETH_P_IP);
	h->ip.saddr = h->ip.daddr;
	h->ip.daddr = addr;
	h->ip.ttl = CONTROL_TTL;
	csum_replace2(&check, before, *(__be16 *)&h->ip.ttl);
	h->ip.check = check;
	return err;
}

/* The UDP checksum of the answer, computed from scratch. XDP only. */
static __always_inline __u16 udp_check(const struct packet *p,
				       struct udphdr *udp,
				       struct control_message *answer)
{
	__u64 sum = bpf_csum_diff(NULL, 0, (__be32 *)answer, CONTROL_BYTES, 0);
	__u16 check;

	sum = (sum & 0xffffffff) + p->head.ip.saddr + p->head.ip.daddr;
	sum += bpf_htons(IPPROTO_UDP) + udp->len;
	sum += udp->source;
	sum += udp->dest;
	sum += udp->len;
	check = csum_fold(sum);
	return check ? check : 0xffff;
}

/*
 * Writes the answer over the request. In tc the checksum is updated by the difference, which
 * is also right for a packet whose checksum is not computed yet. Swapped addresses and ports
 * do not change it.
 */
static __always_inline long store_answer(void *ctx, struct packet *p,
					 struct control_scratch *s,
					 const bool xdp)
{
	struct udphdr udp = {
		.source = p->dest,
		.dest = p->source,
		.len = bpf_htons(CONTROL_UDP_BYTES),
	};
	__u32 at = HEAD_BYTES;
	__s64 diff;
	long err;

	err = packet_store(ctx, 0, p->head.mac, HEAD_BYTES, xdp);
	err |= packet_store(ctx, CONTROL_AT, &s->answer, CONTROL_BYTES, xdp);
	if (xdp) {
		udp.check = udp_check(p, &udp, &s->answer);
		return err | packet_store(ctx, at, &udp, sizeof(udp), xdp);
	}
	err |= packet_store(ctx, at, &udp, offsetof(struct udphdr, len), xdp);
	diff = bpf_csum_diff((__be32 *)&s->request, CONTROL_BYTES,
			     (__be32 *)&s->answer, CONTROL_BYTES, 0);
	return err | bpf_l4_csum_replace(ctx,
					 at + offsetof(struct udphdr, check), 0,
					 diff, BPF_F_MARK_MANGLED_0);
}

/* Reads a request of the right size and form into the scratch area. */
static __always_inline bool load_request(void *ctx, const struct packet *p,
					 struct control_scratch *s,
					 const bool xdp)
{
	const struct control_message *m = &s->request;
	struct udphdr udp;

	if (p->head.ip.ihl != 5 ||
	    p->head.ip.tot_len != bpf_htons(CONTROL_IP_BYTES) ||
	    packet_load(ctx, p->l4, &udp, sizeof(udp), xdp) ||
	    udp.len != bpf_htons(CONTROL_UDP_BYTES) ||
	    packet_load(ctx, CONTROL_AT, &s->request, CONTROL_BYTES, xdp))
		return false;
	return m->magic == bpf_htonl(CONTROL_MAGIC) &&
	       m->version == CONTROL_VERSION && m->kind == CONTROL_REQUEST;
}

static __always_inline __u32 status_counter(__u8 status)
{
	/* The counters have the order of the statuses. */
	_Static_assert(COUNTER_control_ahead - COUNTER_control_ok ==
			       STATUS_AHEAD - STATUS_OK,
		       "order of counters");
	return COUNTER_control_ok + status - STATUS_OK;
}

static __always_inline int work_on(void *ctx, struct packet *p,
				   struct control_scratch *s, const bool xdp)
{
	__u64 clock_ns = bpf_ktime_get_tai_ns();
	struct flow_view view = {};
	struct sender *sender;
	__u32 key_id;
	__u8 status;

	if (!load_request(ctx, p, s, xdp))
		return drop(COUNTER_control_malformed, xdp);
	key_id = bpf_ntohl(s->request.key_id);
	sender = bpf_map_lookup_elem(&senders, &key_id);
	if (!sender || control_mac(&s->request, sender) != s->request.mac)
		return drop(COUNTER_control_forged, xdp);
	status = decide(s, p, sender->tenant, clock_ns, &view);
	if (status == STATUS_BUSY)
		return drop(COUNTER_control_busy, xdp);
	fill_answer(s, status, clock_ns, &view, sender);
	if (turn_head(ctx, p, xdp) || store_answer(ctx, p, s, xdp))
		return drop(COUNTER_drop_store, xdp);
	count(status_counter(status));
	return xdp ? XDP_TX : bpf_redirect(packet_ifindex(ctx, xdp), 0);
}

static __always_inline int answer_control(void *ctx, struct packet *p,
					  const bool xdp)
{
	__u32 zero = 0;
	struct control_scratch *s =
		bpf_map_lookup_elem(&control_scratches, &zero);
	int verdict;

	if (!s || *(volatile __u32 *)&s->busy)
		return drop(COUNTER_control_busy, xdp);
	*(volatile __u32 *)&s->busy = 1;
	verdict = work_on(ctx, p, s, xdp);
	*(volatile __u32 *)&s->busy = 0;
	return verdict;
}

static __always_inline bool is_control(const struct packet *p)
{
	return p->dest == control_port && p->head.ip.daddr == control_addr;
}

#endif
