// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The control protocol (docs/protocol.md, section 1). Requests are parsed, authenticated and
 * answered here, in the packet itself. command.h applies commands to flows.
 */
#ifndef PRISM_CONTROL_H
#define PRISM_CONTROL_H

#include "command.h"
#include "forward.h"

#define CONTROL_BYTES sizeof(struct control_message)
#define CONTROL_UDP_BYTES (sizeof(struct udphdr) + CONTROL_BYTES)
#define CONTROL_HOP_LIMIT 64

/* Decides on an authentic request, in the order of section 1.4. */
static __always_inline __u8 decide(struct control_scratch *s,
				   const struct packet *p,
				   const struct sender *sender, __u64 clock_ns,
				   const struct way *way, struct flow_view *view)
{
	const struct control_message *m = &s->request;
	const struct flow_key *key = &s->key;
	__u8 allowed, refused = 0;

	allowed = authorize(m, key, sender->tenant);
	if (!is_fresh(bpf_be64_to_cpu(m->time_ns), clock_ns))
		refused = STATUS_LATE;
	else if (!is_request_valid(m, way))
		refused = STATUS_BAD_REQUEST;
	else if (!m->ops && has_no_flow(m))
		refused = STATUS_OK;
	else if (allowed != STATUS_APPLY)
		refused = allowed;
	else if (way->admission == ADMIT_YOUNG)
		refused = STATUS_YOUNG;
	else if (way->admission == ADMIT_OLD_TERM)
		refused = STATUS_OLD_TERM;
	if (!refused)
		return apply(s, key, p->now_ns, clock_ns, way, view,
			     sender);
	/* The answer tells the sender about its own tenant's flows only. */
	if (allowed == STATUS_APPLY) {
		struct flow *f = flow_find(key);

		if (f)
			view_now(f, &way->term, p->now_ns, view);
		else
			view->epoch = unknown_epoch();
	}
	return refused;
}

/* Decides on an authentic request. Only its validity depends on whether it announces. */
static __always_inline __u8 decide_in_term(struct control_scratch *s,
					   const struct packet *p,
					   const struct sender *sender,
					   __u64 clock_ns, struct way *way,
					   struct flow_view *view)
{
	__u8 ops = s->request.ops, status;

	way->admission = admit(&way->term, term_number(&s->request), ops);
	if (way->admission == ADMIT_SILENCE)
		return STATUS_SILENCE;
	way->announces = way->term.phase != TERM_NONE && ops & OP_ANNOUNCE;
	if (way->announces)
		s->request.ops = ops & ~OP_ANNOUNCE;
	s->key.client = s->request.client_addr;
	s->key.vip = s->request.vip_addr;
	s->key.client_port = s->request.client_port;
	s->key.vip_port = s->request.vip_port;
	/* Without its pass the request is as any other one. */
	s->claim.has_pass = ops & OP_PASS && take_pass(s);
	if (s->claim.has_pass)
		s->request.ops &= ~OP_PASS;
	claim_of(s, sender);
	status = decide(s, p, sender, clock_ns, way, view);
	if (s->claim.has_pass)
		put_pass_back(s);
	s->request.ops = ops;
	return status;
}

static __always_inline void fill_answer(struct control_scratch *s, __u8 status,
					__u64 clock_ns, __u32 term,
					const struct flow_view *view,
					const struct sender *sender)
{
	struct control_message *a = &s->answer;

	__builtin_memcpy(a, &s->request, sizeof(*a));
	a->kind = CONTROL_ANSWER;
	a->status = status;
	a->state = view->state;
	a->term[0] = term >> 16;
	a->term[1] = term >> 8;
	a->term[2] = term;
	a->owner_run = 0;
	a->time_ns = bpf_cpu_to_be64(clock_ns);
	a->epoch = bpf_cpu_to_be64(view->epoch);
	a->owner_addr = view->owner;
	a->via_addr = view->via;
	a->owner_port = view->owner_port;
	a->mac = control_mac(a, sender);
}

/* The change of the hop limit, as a summand; also of IPv4's TTL and protocol. */
static __always_inline __u64 hop_limit_change(const struct packet *p)
{
	return sum_of_change2(bpf_htons((p->is_v6 ? 1 : 0x100) * p->hop_limit),
			      bpf_htons((p->is_v6 ? 1 : 0x100) *
					CONTROL_HOP_LIMIT));
}

/* Turns the IP header of a request into that of its answer. Swapped addresses sum up alike. */
static __always_inline long turn_ip(void *start, void *end,
				    const struct packet *p)
{
	if (p->is_v6) {
		struct ipv6hdr *ip = start + IP_AT;

		if ((void *)(ip + 1) > end)
			return -1;
		copy_addr((struct ip_addr *)&ip->saddr, &p->dest);
		copy_addr((struct ip_addr *)&ip->daddr, &p->source);
		ip->hop_limit = CONTROL_HOP_LIMIT;
	} else {
		struct iphdr *ip = start + IP_AT;

		if ((void *)(ip + 1) > end)
			return -1;
		ip->saddr = p->dest.word[3];
		ip->daddr = p->source.word[3];
		ip->ttl = CONTROL_HOP_LIMIT;
		ip->check = csum_fold((__u16)~ip->check + hop_limit_change(p));
	}
	return 0;
}

/* Sends the frame back to its sender. */
static __always_inline void turn_frame(void *start)
{
	__u16 *mac = start;

#pragma unroll
	for (int i = 0; i < 3; i++) {
		__u16 dest = mac[i];

		mac[i] = mac[i + 3];
		mac[i + 3] = dest;
	}
}

/* Turns the headers of a request into those of its answer. */
static __always_inline long turn_headers(void *ctx, const struct packet *p,
					 const bool xdp)
{
	void *start = packet_start(ctx, xdp), *end = packet_end(ctx, xdp);
	struct udphdr *udp = start + (p->l4 & (L4_LIMIT - 1));

	if (start + sizeof(struct ethhdr) > end || (void *)(udp + 1) > end ||
	    turn_ip(start, end, p))
		return -1;
	turn_frame(start);
	udp->source = p->dest_port;
	udp->dest = p->source_port;
	return 0;
}

/*
 * The UDP checksum of the answer, computed from scratch. XDP only. The ends have the same sum
 * in either direction, and the prefix of a mapped address has none.
 */
static __always_inline __u16 udp_check(const struct packet *p,
				       struct control_message *answer)
{
	__u64 sum = bpf_csum_diff(NULL, 0, (__be32 *)answer, CONTROL_BYTES, 0);
	__u16 check;

	sum &= 0xffffffff;
#pragma unroll
	for (int i = 0; i < 4; i++)
		sum += (__u64)p->source.word[i] + p->dest.word[i];
	sum += bpf_htons(IPPROTO_UDP) + 2 * bpf_htons(CONTROL_UDP_BYTES);
	sum += p->source_port;
	sum += p->dest_port;
	check = csum_fold(sum);
	return check ? check : 0xffff;
}

/*
 * Writes the answer over the request. In tc the checksum is updated by the difference, which
 * is also right for a packet whose checksum is not computed yet. Swapped addresses and ports
 * do not change it.
 */
static __always_inline long store_answer(void *ctx, const struct packet *p,
					 struct control_scratch *s,
					 const bool xdp)
{
	__u32 check_at = p->l4 + offsetof(struct udphdr, check);
	long err = packet_store(ctx, p->l4 + sizeof(struct udphdr), &s->answer,
				CONTROL_BYTES, xdp);
	__s64 diff;

	if (xdp) {
		__u16 check = udp_check(p, &s->answer);

		return err | packet_store(ctx, check_at, &check, sizeof(check),
					  xdp);
	}
	if (p->is_v6)
		bpf_csum_update(ctx, hop_limit_change(p));
	diff = bpf_csum_diff((__be32 *)&s->request, CONTROL_BYTES,
			     (__be32 *)&s->answer, CONTROL_BYTES, 0);
	return err | bpf_l4_csum_replace(ctx, check_at, 0, diff,
					 BPF_F_MARK_MANGLED_0);
}

/* Reads a request of the right size and form into the scratch area. */
static __always_inline bool load_request(void *ctx, const struct packet *p,
					 struct control_scratch *s,
					 const bool xdp)
{
	const struct control_message *m = &s->request;
	struct udphdr udp;

	if (p->has_options || p->is_huge || p->l4_bytes != CONTROL_UDP_BYTES ||
	    packet_load(ctx, p->l4, &udp, sizeof(udp), xdp) ||
	    udp.len != bpf_htons(CONTROL_UDP_BYTES) ||
	    /* RFC 8200, section 8.1 */
	    (p->is_v6 && !udp.check) ||
	    packet_load(ctx, p->l4 + sizeof(udp), &s->request, CONTROL_BYTES,
			xdp))
		return false;
	return m->magic == bpf_htonl(CONTROL_MAGIC) &&
	       m->version == CONTROL_VERSION && m->kind == CONTROL_REQUEST;
}

static __always_inline __u32 status_counter(__u8 status)
{
	/* The counters have the order of the statuses. */
	_Static_assert(COUNTER_control_old_term - COUNTER_control_ok ==
			       STATUS_OLD_TERM - STATUS_OK,
		       "order of counters");
	return COUNTER_control_ok + status - STATUS_OK;
}

static __always_inline int work_on(void *ctx, const struct packet *p,
				   struct control_scratch *s, const bool xdp)
{
	__u64 clock_ns = bpf_ktime_get_tai_ns();
	struct way way = { .term = term_now() };
	struct flow_view *view = (struct flow_view *)s->view;
	struct sender *sender;
	__u32 key_id, counter;
	__u8 status;

	if (!load_request(ctx, p, s, xdp))
		return drop(COUNTER_control_malformed, xdp);
	key_id = bpf_ntohl(s->request.key_id);
	sender = bpf_map_lookup_elem(&senders, &key_id);
	if (!sender || control_mac(&s->request, sender) != s->request.mac)
		return drop(COUNTER_control_forged, xdp);
	_Static_assert(sizeof(*view) == sizeof(s->view), "view");
	__builtin_memset(view, 0, sizeof(*view));
	status = decide_in_term(s, p, sender, clock_ns, &way, view);
	if (status == STATUS_BUSY)
		return drop(COUNTER_control_busy, xdp);
	if (status == STATUS_SILENCE)
		return drop(COUNTER_control_silent, xdp);
	counter = status_counter(status);
	if (status == STATUS_FOREIGN) {
		counter = COUNTER_control_foreign;
		status = STATUS_DENIED;
	}
	fill_answer(s, status, clock_ns, way.term.number, view, sender);
	if (store_answer(ctx, p, s, xdp) || turn_headers(ctx, p, xdp))
		return drop(COUNTER_drop_store, xdp);
	count(counter);
	return xdp ? XDP_TX : bpf_redirect(packet_ifindex(ctx, xdp), 0);
}

/* Whether the packet came in by an interface that leads to nodes. The entry of interface 0, which
 * does not exist, says that the others are known. */
static __always_inline bool is_from_nodes(void *ctx, const bool xdp)
{
	__u32 ifindex = 0;

	if (!bpf_map_lookup_elem(&control_interfaces, &ifindex))
		return true;
	ifindex = packet_ifindex(ctx, xdp);
	return bpf_map_lookup_elem(&control_interfaces, &ifindex);
}

static __always_inline int answer_control(void *ctx, const struct packet *p,
					  const bool xdp)
{
	__u32 zero = 0;
	struct control_scratch *s =
		bpf_map_lookup_elem(&control_scratches, &zero);
	int verdict;

	if (!is_from_nodes(ctx, xdp))
		return drop(COUNTER_control_interface, xdp);
	if (!s || *(volatile __u32 *)&s->busy)
		return drop(COUNTER_control_busy, xdp);
	*(volatile __u32 *)&s->busy = 1;
	verdict = work_on(ctx, p, s, xdp);
	*(volatile __u32 *)&s->busy = 0;
	return verdict;
}

/* Whether the packet is to an address that commands are sent to. */
static __always_inline bool is_to_control(const struct packet *p)
{
	const addr_half *dest = (const addr_half *)&p->dest;

#pragma unroll
	for (int i = 0; i < CONTROL_ADDRS; i++) {
		const volatile addr_half *addr =
			(const volatile addr_half *)&control_addrs[i];

		if (dest[0] == addr[0] && dest[1] == addr[1])
			return true;
	}
	return false;
}

static __always_inline bool is_control(const struct packet *p)
{
	return p->dest_port == control_port && is_to_control(p);
}

/*
 * Whether a packet whose ports were not read may be a request for a lease, or a part of one, by an
 * interface that leads to no node. The kernel would put it together, or read on where the parser
 * has stopped.
 */
static __always_inline bool may_be_stray_lease(void *ctx,
					       const struct packet *p,
					       const bool xdp)
{
	return may_be_tcp(p) && is_to_control(p) && !is_from_nodes(ctx, xdp);
}

#endif
