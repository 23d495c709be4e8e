// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Reads packets. A packet of either family is parsed once into a descriptor on the stack.
 * After that nothing depends on packet pointers, which every helper that writes invalidates.
 * `xdp` is a constant in every caller, so the compiler keeps one branch.
 */
#ifndef PRISM_PARSE_H
#define PRISM_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "maps.h"

#define IP_MORE_FRAGMENTS 0x2000
#define IP_FRAGMENT_OFFSET 0x1fff
#define IP_DONT_FRAGMENT 0x4000
#define PACKET_TO_US 0 /* PACKET_HOST of linux/if_packet.h */

#define IP_AT sizeof(struct ethhdr)
/* Ethernet, IPv4 and TCP, without options. */
#define USUAL_HEADERS (14 + 20 + 20)
/* The same with the longest IPv4 header. */
#define LONGEST_HEADERS (14 + 60 + 20)
/* Ethernet, IPv6 and TCP, without extension headers. */
#define USUAL_HEADERS6 (14 + 40 + 20)
/* A power of two above every offset of a layer 4 header. */
#define L4_LIMIT 256

#define TCP_FLAG_BYTE 13
#define TCP_CHECK 16
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* Extension headers of IPv6, by number (IANA). */
#define NEXTHDR_HOP 0
#define NEXTHDR_ROUTING 43
#define NEXTHDR_FRAGMENT 44
#define NEXTHDR_AUTH 51
#define NEXTHDR_DEST 60
/* Most that are read; usual packets have none. */
#define MAX_EXTENSIONS 4
/* The field of a fragment header that is zero in one of a whole packet. */
#define IP6_IS_PART 0xfff9

/* Tags of VLAN 0 that are taken off, as the kernel does; usual frames have none. */
#define MAX_PRIORITY_TAGS 2
#define VLAN_ID 0x0fff

/* A packet of either family. */
struct packet {
	/* As in struct flow_key: these of a packet to a service are the flow's key. */
	struct ip_addr source;
	struct ip_addr dest;
	__be16 source_port;
	__be16 dest_port;
	__u32 l4;		/* offset of the TCP, UDP or ICMP header */
	__u64 now_ns;
	__u32 bytes;		/* of the frame, or of all frames of a GSO packet */
	__u32 l4_bytes;		/* from the TCP, UDP or ICMP header on */
	__be32 tcp_seq;
	__be32 tcp_ack;
	__u8 tcp_flags;
	__u8 tcp_header_bytes;
	__u8 protocol;		/* of layer 4 */
	__u8 hop_limit;
	bool is_v6;
	bool has_options;	/* of IPv4, or extension headers of IPv6 */
	bool is_huge;		/* a GSO packet that is too long for IP's field */
	bool may_be_cut;	/* a router may send it as fragments */
} ALIGNED;

enum parsed {
	PARSED_OTHER,		/* not for the switch */
	PARSED_TAGGED,		/* a frame of a VLAN */
	PARSED_OVERTAGGED,	/* more tags of VLAN 0 than are taken off */
	PARSED_LINK_LOCAL,	/* IPv6 that no router forwards; no layer 4 header read */
	PARSED_TRUNCATED,
	PARSED_FRAGMENT,	/* no layer 4 header read */
	PARSED_REFUSED,		/* extension headers that hide layer 4 */
	PARSED_TCP,
	PARSED_UDP,
	PARSED_ICMP,
	PARSED_TUNNEL,		/* an IP packet, whose header is not read */
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
	__u32 fin = p->tcp_flags & TCP_FIN;

	return bpf_ntohl(p->tcp_seq) + p->l4_bytes - p->tcp_header_bytes + fin;
}

static __always_inline enum parsed parse_tcp(struct packet *p, void *at,
					     void *end)
{
	struct tcphdr *tcp = at;

	if ((void *)(tcp + 1) > end)
		return PARSED_TRUNCATED;
	p->source_port = tcp->source;
	p->dest_port = tcp->dest;
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
	p->source_port = udp->source;
	p->dest_port = udp->dest;
	return PARSED_UDP;
}

static __always_inline enum parsed parse_l4(struct packet *p, void *at,
					    void *end)
{
	switch (p->protocol) {
	case IPPROTO_TCP:
		return parse_tcp(p, at, end);
	case IPPROTO_UDP:
		return parse_udp(p, at, end);
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
		return PARSED_TUNNEL;
	}
	return PARSED_OTHER;
}

static __always_inline enum parsed parse_ip4(void *ctx, struct packet *p,
					     struct iphdr *ip, void *end,
					     const bool xdp)
{
	__u32 header_bytes, ip_bytes;

	if (ip->version != 4 || ip->ihl < 5)
		return PARSED_OTHER;
	header_bytes = ip->ihl * 4;
	ip_bytes = bpf_ntohs(ip->tot_len);
	map_addr(&p->source, ip->saddr);
	map_addr(&p->dest, ip->daddr);
	p->protocol = ip->protocol;
	p->hop_limit = ip->ttl;
	p->is_v6 = false;
	p->has_options = header_bytes > sizeof(*ip);
	p->is_huge = !ip_bytes;
	p->may_be_cut = !(ip->frag_off & bpf_htons(IP_DONT_FRAGMENT));
	p->l4 = IP_AT + header_bytes;
	p->l4_bytes = (ip_bytes ? ip_bytes : p->bytes - IP_AT) - header_bytes;
	if (ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
		return PARSED_FRAGMENT;
	if (p->protocol == IPPROTO_ICMP)
		return PARSED_ICMP;
	if (!xdp && header_bytes > sizeof(*ip)) {
		make_linear(ctx, LONGEST_HEADERS);
		ip = packet_start(ctx, xdp) + IP_AT;
		end = packet_end(ctx, xdp);
	}
	return parse_l4(p, (void *)ip + header_bytes, end);
}

/* Whether the addresses of an IPv6 header are of a kind that a router forwards. */
static __always_inline bool are_forwarded(const struct packet *p)
{
	/* IPv4 addresses in an IPv6 header would be taken for those of an IPv4 packet. */
	if (is_mapped(&p->source) || is_mapped(&p->dest))
		return false;
	return (p->source.word[0] & bpf_htonl(0xffc00000)) !=
	       bpf_htonl(0xfe800000) /* link-local */;
}

/* Whether another header follows. */
static __always_inline bool is_extension(__u8 protocol)
{
	return protocol == NEXTHDR_HOP || protocol == NEXTHDR_ROUTING ||
	       protocol == NEXTHDR_FRAGMENT || protocol == NEXTHDR_AUTH ||
	       protocol == NEXTHDR_DEST;
}

/* Whether a packet whose ports were not read may be TCP. */
static __always_inline bool may_be_tcp(const struct packet *p)
{
	return p->protocol == IPPROTO_TCP ||
	       (p->is_v6 && is_extension(p->protocol));
}

/* An extension header's first bytes (RFC 8200). */
struct extension {
	__u8 next;
	__u8 length;		/* in units of eight bytes, without the first; not of fragments */
	__be16 fragment;	/* of a fragment: its place, and whether more follow */
};

/*
 * Walks the extension headers of an IPv6 packet to its layer 4. The switch reads headers that
 * leave a packet's ends and its payload as they are. It refuses the others: a routing header
 * with segments left has another destination, and an authentication header covers the
 * addresses. An atomic fragment (RFC 6946) is a whole packet.
 */
static __noinline int walk_extensions(void *ctx, struct packet *p,
				      const bool xdp)
{
	__u32 at = IP_AT + sizeof(struct ipv6hdr);
	__u32 bytes;

	p->has_options = true;
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		struct extension header;

		if (p->protocol == NEXTHDR_AUTH)
			return PARSED_REFUSED;
		if (packet_load(ctx, at, &header, sizeof(header), xdp))
			return PARSED_TRUNCATED;
		bytes = (header.length + 1) * 8;
		if (p->protocol == NEXTHDR_FRAGMENT) {
			bytes = 8;
			p->protocol = header.next;
			if (header.fragment & bpf_htons(IP6_IS_PART))
				return PARSED_FRAGMENT;
		} else if (p->protocol == NEXTHDR_ROUTING &&
			   header.fragment & bpf_htons(0xff) /* segments left */) {
			return PARSED_REFUSED;
		}
		p->protocol = header.next;
		at += bytes;
		if (at > L4_LIMIT - sizeof(struct tcphdr))
			return PARSED_REFUSED;
		if (!is_extension(p->protocol)) {
			p->l4_bytes -= at - p->l4;
			p->l4 = at;
			return PARSED_OTHER;
		}
	}
	return PARSED_REFUSED;
}

/* Reads layer 4 behind extension headers. */
static __always_inline enum parsed parse_extended(void *ctx, struct packet *p,
						  const bool xdp)
{
	int parsed = walk_extensions(ctx, p, xdp);

	if (parsed != PARSED_OTHER)
		return parsed;
	if (p->protocol == IPPROTO_ICMPV6)
		return PARSED_ICMP;
	if (!xdp)
		make_linear(ctx, L4_LIMIT);
	/* The mask changes nothing, but bounds the offset for the verifier. */
	return parse_l4(p, packet_start(ctx, xdp) + (p->l4 & (L4_LIMIT - 1)),
			packet_end(ctx, xdp));
}

static __always_inline enum parsed parse_ip6(void *ctx, struct packet *p,
					     const bool xdp)
{
	struct ipv6hdr *ip;
	void *start, *end;
	__u32 payload_bytes;

	if (!xdp)
		make_linear(ctx, USUAL_HEADERS6);
	start = packet_start(ctx, xdp);
	end = packet_end(ctx, xdp);
	ip = start + IP_AT;
	if ((void *)(ip + 1) > end || ip->version != 6)
		return PARSED_OTHER;
	payload_bytes = bpf_ntohs(ip->payload_len);
	copy_addr(&p->source, (struct ip_addr *)&ip->saddr);
	copy_addr(&p->dest, (struct ip_addr *)&ip->daddr);
	p->protocol = ip->nexthdr;
	p->is_v6 = true;
	if (!are_forwarded(p))
		return PARSED_LINK_LOCAL;
	p->hop_limit = ip->hop_limit;
	p->has_options = false;
	p->is_huge = !payload_bytes;
	p->may_be_cut = false;
	p->l4 = IP_AT + sizeof(*ip);
	p->l4_bytes = payload_bytes ? payload_bytes : p->bytes - p->l4;
	if (p->protocol == IPPROTO_ICMPV6)
		return PARSED_ICMP;
	if (is_extension(p->protocol))
		return parse_extended(ctx, p, xdp);
	return parse_l4(p, ip + 1, end);
}

static __always_inline bool is_tag(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) ||
	       protocol == bpf_htons(ETH_P_8021AD);
}

/* The number of the frame's VLAN; -1: it has no tag. Drivers and the kernel keep the outer tag
 * beside the frame. */
static __always_inline int vlan_of(struct __sk_buff *skb)
{
	__be16 tag[2];

	if (skb->vlan_present)
		return skb->vlan_tci & VLAN_ID;
	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), tag,
			       sizeof(tag)) ||
	    !is_tag(tag[0]))
		return -1;
	return bpf_ntohs(tag[1]) & VLAN_ID;
}

/*
 * Takes off tags of VLAN 0, which give a priority only (IEEE 802.1Q). The kernel takes off any
 * number of them. PARSED_OTHER: no tag is left.
 */
static __noinline int untag(struct __sk_buff *skb)
{
	int vlan = vlan_of(skb);

	for (int i = 0; i < MAX_PRIORITY_TAGS && !vlan; i++) {
		if (bpf_skb_vlan_pop(skb))
			return PARSED_OVERTAGGED;
		vlan = vlan_of(skb);
	}
	if (vlan < 0)
		return PARSED_OTHER;
	return vlan ? PARSED_TAGGED : PARSED_OVERTAGGED;
}

/*
 * Reads a frame. XDP cannot tell whether it is addressed to another station, or had a tag that the
 * device has taken off; it is for interfaces that receive no such frames.
 */
static __always_inline enum parsed parse(void *ctx, struct packet *p,
					 const bool xdp)
{
	struct __sk_buff *skb = ctx;
	__be16 protocol;
	struct iphdr *ip;
	__u8 *start;
	void *end;

	if (!xdp) {
		if (skb->pkt_type != PACKET_TO_US)
			return PARSED_OTHER;
		if (skb->vlan_present || is_tag(skb->protocol)) {
			int tagged = untag(skb);

			if (tagged != PARSED_OTHER)
				return tagged;
		}
		make_linear(ctx, USUAL_HEADERS);
	}
	start = packet_start(ctx, xdp);
	end = packet_end(ctx, xdp);
	ip = (void *)(start + IP_AT);
	/* A shorter frame has no IP packet for the switch. */
	if ((void *)(ip + 1) > end || (start[0] & 1) /* multicast */)
		return PARSED_OTHER;
	p->bytes = xdp ? end - (void *)start : skb->len;
	protocol = *(__be16 *)(start + offsetof(struct ethhdr, h_proto));
	if (protocol == bpf_htons(ETH_P_IP))
		return parse_ip4(ctx, p, ip, end, xdp);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return parse_ip6(ctx, p, xdp);
	return is_tag(protocol) ? PARSED_TAGGED : PARSED_OTHER;
}

#endif
