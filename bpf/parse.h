// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Reads packets. A packet is parsed once into a struct on the stack. After that nothing
 * depends on packet pointers, which every helper that writes invalidates. `xdp` is a constant
 * in every caller, so the compiler keeps one branch.
 */
#ifndef PRISM_PARSE_H
#define PRISM_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "maps.h"

#define IP_MORE_FRAGMENTS 0x2000
#define IP_FRAGMENT_OFFSET 0x1fff
#define IP_DONT_FRAGMENT 0x4000
#define PACKET_TO_US 0 /* PACKET_HOST of linux/if_packet.h */

/* Ethernet, IPv4 and TCP, without options. */
#define USUAL_HEADERS (14 + 20 + 20)
/* The same with the longest IPv4 header. */
#define LONGEST_HEADERS (14 + 60 + 20)
/* A power of two above every offset of a layer 4 header (14 + 60 at most). */
#define L4_LIMIT 128

#define TCP_FLAG_BYTE 13
#define TCP_CHECK 16
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/*
 * The headers that change on every hop, as one block to write back. The padding aligns all
 * fields, so that the compiler does not copy single bytes.
 */
struct head {
	__u16 pad;
	__u16 mac[6];		/* destination, source: unset until the packet is sent */
	__be16 protocol;
	struct iphdr ip;
};
_Static_assert(sizeof(struct head) == 36, "head");

#define HEAD_BYTES (sizeof(struct head) - offsetof(struct head, mac))
#define IP_AT sizeof(struct ethhdr)

struct packet {
	struct head head;
	__be16 source;
	__be16 dest;
	__u8 tcp_flags;
	__u8 tcp_header_bytes;
	__be32 tcp_seq;
	__be32 tcp_ack;
	__u32 l4;		/* offset of the TCP, UDP or ICMP header */
	__u32 bytes;		/* of the frame, or of all frames of a GSO packet */
	__u64 now_ns;
};

enum parsed {
	PARSED_OTHER,		/* not for the switch */
	PARSED_TRUNCATED,
	PARSED_FRAGMENT,	/* no layer 4 header read */
	PARSED_TCP,
	PARSED_UDP,
	PARSED_ICMP,
};

static __always_inline void *packet_start(void *ctx, const bool xdp)
{
	return xdp ? (void *)(long)((struct xdp_md *)ctx)->data :
		     (void *)(long)((struct __sk_buff *)ctx)->data;
}

static __always_inline void *packet_end(void *ctx, const bool xdp)
{
	return xdp ? (void *)(long)((struct xdp_md *)ctx)->data_end :
		     (void *)(long)((struct __sk_buff *)ctx)->data_end;
}

static __always_inline __u32 packet_ifindex(void *ctx, const bool xdp)
{
	return xdp ? ((struct xdp_md *)ctx)->ingress_ifindex :
		     ((struct __sk_buff *)ctx)->ifindex;
}

static __always_inline long packet_load(void *ctx, __u32 at, void *to,
					__u32 bytes, const bool xdp)
{
	return xdp ? bpf_xdp_load_bytes(ctx, at, to, bytes) :
		     bpf_skb_load_bytes(ctx, at, to, bytes);
}

static __always_inline long packet_store(void *ctx, __u32 at, void *from,
					 __u32 bytes, const bool xdp)
{
	return xdp ? bpf_xdp_store_bytes(ctx, at, from, bytes) :
		     bpf_skb_store_bytes(ctx, at, from, bytes, 0);
}

/*
 * Makes the first `bytes` of a tc packet readable. A packet that this host made has just its
 * headers in the readable part; asking for one byte more would move and copy them each time.
 */
static __always_inline void make_linear(struct __sk_buff *skb, __u32 bytes)
{
	__u32 linear = skb->data_end - skb->data;
	__u32 want = skb->len < bytes ? skb->len : bytes;

	if (linear < want)
		bpf_skb_pull_data(skb, want);
}

/* The sequence number behind the segment. */
static __always_inline __u32 tcp_end(const struct packet *p)
{
	__u32 ip_bytes = bpf_ntohs(p->head.ip.tot_len);
	__u32 fin = p->tcp_flags & TCP_FIN;

	/* A GSO packet may be longer than the field of IP. */
	if (!ip_bytes)
		ip_bytes = p->bytes - IP_AT;
	return bpf_ntohl(p->tcp_seq) + ip_bytes - (p->l4 - IP_AT) -
	       p->tcp_header_bytes + fin;
}

static __always_inline enum parsed parse_tcp(struct packet *p, void *at,
					     void *end)
{
	struct tcphdr *tcp = at;

	if ((void *)(tcp + 1) > end)
		return PARSED_TRUNCATED;
	p->source = tcp->source;
	p->dest = tcp->dest;
	p->tcp_flags = ((__u8 *)tcp)[TCP_FLAG_BYTE];
	p->tcp_header_bytes = tcp->doff * 4;
	p->tcp_seq = tcp->seq;
	p->tcp_ack = tcp->ack_seq;
	return PARSED_TCP;
}

static __always_inline enum parsed parse_udp(struct packet *p, void *at,
					     void *end)
{
	struct udphdr *udp = at;

	if ((void *)(udp + 1) > end)
		return PARSED_TRUNCATED;
	p->source = udp->source;
	p->dest = udp->dest;
	return PARSED_UDP;
}

static __always_inline enum parsed parse_l4(struct packet *p, void *at,
					    void *end)
{
	if (p->head.ip.frag_off &
	    bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
		return PARSED_FRAGMENT;
	switch (p->head.ip.protocol) {
	case IPPROTO_TCP:
		return parse_tcp(p, at, end);
	case IPPROTO_UDP:
		return parse_udp(p, at, end);
	case IPPROTO_ICMP:
		return PARSED_ICMP;
	}
	return PARSED_OTHER;
}

/*
 * Whether the frame is tagged, or addressed to another station. XDP cannot tell; it is for
 * interfaces that receive no such frames.
 */
static __always_inline bool is_foreign(void *ctx, const bool xdp)
{
	struct __sk_buff *skb = ctx;

	return !xdp && (skb->pkt_type != PACKET_TO_US || skb->vlan_present);
}

static __always_inline enum parsed parse(void *ctx, struct packet *p,
					 const bool xdp)
{
	__u8 *start;
	struct iphdr *ip;
	void *end;

	if (is_foreign(ctx, xdp))
		return PARSED_OTHER;
	if (!xdp)
		make_linear(ctx, USUAL_HEADERS);
	start = packet_start(ctx, xdp);
	end = packet_end(ctx, xdp);
	ip = (void *)(start + IP_AT);
	if ((void *)(ip + 1) > end)
		return PARSED_OTHER;
	if (*(__be16 *)(start + offsetof(struct ethhdr, h_proto)) !=
		    bpf_htons(ETH_P_IP) ||
	    (start[0] & 1) /* multicast */)
		return PARSED_OTHER;
	p->head.ip = *ip;
	if (p->head.ip.version != 4 || p->head.ip.ihl < 5)
		return PARSED_OTHER;
	p->l4 = IP_AT + p->head.ip.ihl * 4;
	if (!xdp && p->head.ip.ihl > 5) {
		make_linear(ctx, LONGEST_HEADERS);
		start = packet_start(ctx, xdp);
		end = packet_end(ctx, xdp);
	}
	p->bytes = xdp ? end - (void *)start : ((struct __sk_buff *)ctx)->len;
	return parse_l4(p, (void *)start + p->l4, end);
}

#endif
