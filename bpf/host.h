// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Host mode (docs/design/host-mode.md): the program at the ingress of the nodes' own interfaces.
 * The packets of a moved flow go on to its owner, unchanged. All others go up the local stack, if
 * a socket of this host may answer them: a stack without the socket would reset the client.
 * Answers do not pass here.
 */
#ifndef PRISM_HOST_H
#define PRISM_HOST_H

#include "tunnel.h"

/* The kernel's type information has the offsets of these fields. */
struct tcp_request_sock {
	__u32 rcv_isn;
	__u32 snt_isn;
} __attribute__((preserve_access_index));

struct sock {
	__u32 sk_mark;
} __attribute__((preserve_access_index));

/* This host's connection that a packet belongs to. */
enum socket_kind {
	SOCKET_NONE,
	SOCKET_MUTE,		/* frozen: it only keeps the stack from resetting the client */
	SOCKET_LIVE,
};

/*
 * Whether the packet belongs to this handshake: it acknowledges the answer to the SYN, or resets
 * the server of a SYN that was forged.
 */
static __always_inline bool is_opening(struct bpf_sock *sk,
				       const struct packet *p)
{
	struct tcp_request_sock *req = bpf_skc_to_tcp_request_sock(sk);

	if (!req)
		return false;
	if (p->tcp_flags & TCP_RST)
		return bpf_ntohl(p->tcp_seq) == req->rcv_isn + 1;
	return p->tcp_flags & TCP_ACK &&
	       bpf_ntohl(p->tcp_ack) == req->snt_isn + 1;
}

/* Whether the socket sends nothing, because its flow is elsewhere or may be. */
static __always_inline bool is_mute(struct bpf_sock *sk)
{
	struct sock *full = (struct sock *)bpf_skc_to_tcp_sock(sk);

	return full && (full->sk_mark & 0xffff0000) == frozen_marks;
}

/*
 * Finds this host's connection that the packet belongs to, TIME_WAIT included, or a handshake
 * that it goes on with.
 */
static __noinline int find_socket(void *ctx, const struct packet *p)
{
	struct bpf_sock_tuple tuple = {};
	__u32 bytes = sizeof(tuple.ipv4);
	struct bpf_sock *sk;
	int found = SOCKET_LIVE;

	if (p->is_v6) {
		bytes = sizeof(tuple.ipv6);
		__builtin_memcpy(tuple.ipv6.saddr, &p->source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &p->dest, 16);
		tuple.ipv6.sport = p->source_port;
		tuple.ipv6.dport = p->dest_port;
	} else {
		tuple.ipv4.saddr = p->source.word[3];
		tuple.ipv4.daddr = p->dest.word[3];
		tuple.ipv4.sport = p->source_port;
		tuple.ipv4.dport = p->dest_port;
	}
	sk = bpf_skc_lookup_tcp(ctx, &tuple, bytes, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return SOCKET_NONE;
	if (sk->state == BPF_TCP_LISTEN)
		found = SOCKET_NONE;
	else if (sk->state == BPF_TCP_NEW_SYN_RECV)
		found = is_opening(sk, p) ? SOCKET_LIVE : SOCKET_NONE;
	else if (is_mute(sk))
		found = SOCKET_MUTE;
	bpf_sk_release(sk);
	return found;
}

static __always_inline bool is_syn(const struct packet *p)
{
	return (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Handles a packet whose owner is this host. */
static __always_inline int host_owned(void *ctx, const struct packet *p)
{
	if (find_socket(ctx, p) == SOCKET_NONE)
		return drop(COUNTER_drop_no_socket, false);
	return punt(COUNTER_punt_here, false);
}

/*
 * Handles a packet at a frontend that is not the arbiter. Several frontends may accept clients at
 * once, and the network may send a connection's packets to any of them. The flow may be this
 * host's own copy, so it decides nothing but that a SYN may be of a live connection. A mute
 * socket would swallow what its flow's owner waits for.
 */
static __always_inline int host_aside(void *ctx, const struct packet *p,
				      const struct flow *f)
{
	int socket = find_socket(ctx, p);
	bool is_new = socket == SOCKET_NONE && is_syn(p) &&
		      (!f || f->state == FLOW_ABSENT);
	struct ip_addr arbiter ALIGNED;

	if (socket == SOCKET_LIVE || is_new)
		return punt(COUNTER_punt_here, false);
	if (!arbiter_addr(p->is_v6, &arbiter))
		return drop(COUNTER_drop_no_way, false);
	return send_in_tunnel(ctx, p, &arbiter);
}

/*
 * Whether another frontend may have accepted the packet's connection, and not claimed it yet.
 * If no frontend has, the client gets no answer.
 */
static __always_inline bool may_be_unclaimed(const struct packet *p,
					     const struct service *service)
{
	return tunnel_mtu_bytes && service->now.count > 1 && !is_syn(p);
}

/*
 * Handles a packet of a flow without an owner. A new connection is accepted by the frontend that
 * its packets reach. In a young term another host may yet announce the flow, and a handshake that
 * a forged SYN has begun would reset its client.
 */
static __always_inline int host_unowned(void *ctx, const struct packet *p,
					const struct service *service,
					const struct term *t)
{
	if (find_socket(ctx, p) != SOCKET_NONE)
		return punt(COUNTER_punt_here, false);
	if (!accepts_clients || t->phase == TERM_STANDBY ||
	    may_be_unclaimed(p, service))
		return drop(COUNTER_drop_no_socket, false);
	if (is_undecided(t) && !is_syn(p))
		return drop(COUNTER_drop_young, false);
	return punt(COUNTER_punt_here, false);
}

static __always_inline int host_flow(void *ctx, const struct packet *p,
				     struct flow *f,
				     const struct service *service,
				     const struct term *t)
{
	struct rewrite none = { .side = SIDE_NONE };
	struct route r;

	if (is_syn(p))
		flow_route(f, &r);
	else
		flow_to_owner(f, p, &r);
	if (r.state == FLOW_BLOCKED)
		return drop(COUNTER_drop_blocked, false);
	if (r.state == FLOW_FORWARD) {
		if (is_here(&r.via))
			return host_owned(ctx, p);
		if (tunnel_mtu_bytes)
			return send_in_tunnel(ctx, p, &r.via);
		return forward(ctx, p, &r.via, &none, COUNTER_forward_to_owner,
			       false);
	}
	/* The SYN may be forged, and the flow's owner may announce it yet. */
	if (is_undecided(t))
		return host_unowned(ctx, p, service, t);
	if (is_syn(p))
		flow_purge(f, p->now_ns, 0);
	else if (is_released(f))
		return drop(COUNTER_drop_released, false);
	return host_unowned(ctx, p, service, t);
}

static __always_inline int host_tcp(void *ctx, const struct packet *p)
{
	struct service *service;
	struct term t;
	struct flow *f;

	if (!is_service_port(p->dest_port))
		return pass(false);
	service = service_find(&p->dest, p->dest_port);
	if (!service)
		return pass(false);
	f = flow_find(key_to_service(p));
	t = term_now();
	if (t.phase == TERM_STANDBY && accepts_clients && tunnel_mtu_bytes)
		return host_aside(ctx, p, f);
	return f ? host_flow(ctx, p, f, service, &t) :
		   host_unowned(ctx, p, service, &t);
}

/*
 * Handles a packet that another node's host has sent here in a tunnel. If that host took this
 * one for the arbiter, and it is, the packet goes on to its owner. Any other is for a socket of
 * this host: no two hosts send a packet to each other for ever.
 */
static __always_inline int host_arrived(struct __sk_buff *skb, struct packet *p)
{
	bool is_for_arbiter = !is_here(&p->dest);
	struct term t = term_now();

	switch (leave_tunnel(skb, p)) {
	case PARSED_TCP:
		if (is_for_arbiter && t.phase != TERM_STANDBY)
			return host_tcp(skb, p);
		return host_owned(skb, p);
	case PARSED_ICMP:
		return pass(false);
	}
	return drop(COUNTER_drop_tunnel, false);
}

#endif
