// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Host mode: the sockets of this host that clients' packets belong to.
 */
#ifndef PRISM_SOCKET_H
#define PRISM_SOCKET_H

#include "flow.h"

/* The kernel's type information has the offsets of these fields. */
struct tcp_request_sock {
	__u32 rcv_isn;
	__u32 snt_isn;
} __attribute__((preserve_access_index));

struct sock {
	__u32 sk_mark;
} __attribute__((preserve_access_index));

/* This host's connection that a packet belongs to. From SOCKET_MUTE on there is one. */
enum socket_kind {
	SOCKET_NONE,
	SOCKET_COOKIE,		/* the packet acknowledges a SYN cookie of this host */
	SOCKET_MUTE,		/* frozen: it only keeps the stack from resetting the client */
	SOCKET_LIVE,
	SOCKET_UNSEEN,		/* live, and the arbiter is to see a packet of it again */
};

/* The last time when the arbiter was to see a packet of the connection. */
struct sight {
	__u64 since_ns;		/* CLOCK_MONOTONIC */
};

/* Of the sockets of a frontend that is not the arbiter. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sight);
} sights SEC(".maps");

static __always_inline bool is_syn(const struct packet *p)
{
	return (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Whether the packet may complete a handshake. */
static __always_inline bool is_ack(const struct packet *p)
{
	return (p->tcp_flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_ACK;
}

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

/*
 * Whether the packet acknowledges a SYN cookie that this host's kernel has sent. The kernel reads
 * the addresses, ports and numbers alone.
 */
static __always_inline bool is_of_cookie(struct bpf_sock *listener,
					 const struct packet *p)
{
	struct tcphdr tcp = {
		.source = p->source_port,
		.dest = p->dest_port,
		.seq = p->tcp_seq,
		.ack_seq = p->tcp_ack,
		.ack = 1,
	};

	if (!is_ack(p))
		return false;
	if (p->is_v6) {
		struct ipv6hdr ip ALIGNED = { .version = 6 };

		copy_addr((struct ip_addr *)&ip.saddr, &p->source);
		copy_addr((struct ip_addr *)&ip.daddr, &p->dest);
		return !bpf_tcp_check_syncookie(listener, &ip, sizeof(ip), &tcp,
						sizeof(tcp));
	}
	struct iphdr ip = {
		.version = 4,
		.saddr = p->source.word[3],
		.daddr = p->dest.word[3],
	};

	return !bpf_tcp_check_syncookie(listener, &ip, sizeof(ip), &tcp,
					sizeof(tcp));
}

/* Whether the socket sends nothing, because its flow is elsewhere or may be. */
static __always_inline bool is_mute(struct bpf_sock *sk)
{
	struct sock *full = (struct sock *)bpf_skc_to_tcp_sock(sk);

	return full && (full->sk_mark & 0xffff0000) == frozen_marks;
}

/* Whether the arbiter is to see a packet of the connection again. If so, it is this one. */
static __always_inline bool is_unseen(struct bpf_sock *sk, __u64 now_ns)
{
	struct sight fresh = { .since_ns = now_ns };
	struct sight *sight = bpf_sk_storage_get(&sights, sk, &fresh,
						 BPF_SK_STORAGE_GET_F_CREATE);

	/* The clock of another CPU may be a tick ahead. */
	if (!sight || (__s64)(now_ns - sight->since_ns) < (__s64)unseen_ns())
		return false;
	sight->since_ns = now_ns;
	return true;
}

/* The socket of a flow in this network namespace, which is to be released. */
static __always_inline struct bpf_sock *socket_of(void *ctx,
						  const struct flow_key *key)
{
	struct bpf_sock_tuple tuple = {};
	__u32 bytes = sizeof(tuple.ipv4);

	if (is_mapped(&key->client)) {
		tuple.ipv4.saddr = key->client.word[3];
		tuple.ipv4.daddr = key->vip.word[3];
		tuple.ipv4.sport = key->client_port;
		tuple.ipv4.dport = key->vip_port;
	} else {
		bytes = sizeof(tuple.ipv6);
		__builtin_memcpy(tuple.ipv6.saddr, &key->client, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &key->vip, 16);
		tuple.ipv6.sport = key->client_port;
		tuple.ipv6.dport = key->vip_port;
	}
	return bpf_skc_lookup_tcp(ctx, &tuple, bytes, BPF_F_CURRENT_NETNS, 0);
}

/*
 * Finds this host's connection that the packet belongs to, TIME_WAIT included, or a handshake
 * that it goes on with. `is_aside`: the arbiter is another frontend.
 */
static __noinline int find_socket(void *ctx, const struct packet *p,
				  bool is_aside)
{
	struct bpf_sock *sk = socket_of(ctx, key_to_service(p));
	int found = SOCKET_LIVE;

	if (!sk)
		return SOCKET_NONE;
	if (sk->state == BPF_TCP_LISTEN)
		found = is_of_cookie(sk, p) ? SOCKET_COOKIE : SOCKET_NONE;
	else if (sk->state == BPF_TCP_NEW_SYN_RECV)
		found = is_opening(sk, p) ? SOCKET_LIVE : SOCKET_NONE;
	else if (is_mute(sk))
		found = SOCKET_MUTE;
	else if (is_aside && !is_syn(p) && is_unseen(sk, p->now_ns))
		found = SOCKET_UNSEEN;
	bpf_sk_release(sk);
	return found;
}

/* Whether this host has a connection of the flow that is not frozen. */
static __noinline int has_live_socket(void *ctx, const struct flow_key *key)
{
	struct bpf_sock *sk = socket_of(ctx, key);
	int is_live;

	if (!sk)
		return 0;
	is_live = sk->state != BPF_TCP_LISTEN && !is_mute(sk);
	bpf_sk_release(sk);
	return is_live;
}

#endif
