// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Addresses of both families, IPv4 mapped. Beyond the parser no code depends on the family,
 * but for the headers that are written.
 *
 * Addresses are copied and compared as two words of eight bytes. Every address that these
 * functions get is therefore aligned to eight bytes, and structs on the stack that have one
 * are declared with ALIGNED.
 */
#ifndef PRISM_ADDR_H
#define PRISM_ADDR_H

#include <stdbool.h>
#include <bpf/bpf_endian.h>

#include "csum.h"
#include "wire.h"

#define ALIGNED __attribute__((aligned(8)))

typedef __u64 __attribute__((may_alias)) addr_half;

static __always_inline void copy_addr(struct ip_addr *to,
				      const struct ip_addr *from)
{
	((addr_half *)to)[0] = ((const addr_half *)from)[0];
	((addr_half *)to)[1] = ((const addr_half *)from)[1];
}

/* The address as two words, for comparisons. */
static __always_inline bool same_addr(const struct ip_addr *a,
				      const struct ip_addr *b)
{
	const addr_half *x = (const addr_half *)a, *y = (const addr_half *)b;

	return x[1] == y[1] && x[0] == y[0];
}

static __always_inline bool is_zero_addr(const struct ip_addr *a)
{
	const addr_half *half = (const addr_half *)a;

	return !(half[0] | half[1]);
}

static __always_inline void map_addr(struct ip_addr *to, __be32 addr)
{
	*(addr_half *)to = 0;
	to->word[2] = bpf_htonl(0xffff);
	to->word[3] = addr;
}

static __always_inline bool is_mapped(const struct ip_addr *a)
{
	return a->word[2] == bpf_htonl(0xffff) && !*(const addr_half *)a;
}

static __always_inline bool same_family(const struct ip_addr *a,
					const struct ip_addr *b)
{
	return is_mapped(a) == is_mapped(b);
}

/* Mixes the bits of a hash. */
static __always_inline __u32 mix(__u32 h)
{
	h ^= h >> 16;
	h *= 0x7feb352d;
	h ^= h >> 15;
	h *= 0x846ca68b;
	return h ^ (h >> 16);
}

/*
 * One word for an address: an IPv4 address itself. The odd factors keep apart IPv6 addresses
 * that have the same numbers in other places, as those of hosts in racks do.
 */
static __always_inline __u32 addr_word(const struct ip_addr *a)
{
	return a->word[3] + (a->word[2] ^ bpf_htonl(0xffff)) * 0x9e3779b1 +
	       a->word[1] * 0x85ebca77 + a->word[0] * 0xc2b2ae3d;
}

/* The summand for replacing an address in a checksum. */
static __always_inline __u64 sum_of_change(const struct ip_addr *from,
					   const struct ip_addr *to, bool is_v6)
{
	__u64 sum = sum_of_change4(from->word[3], to->word[3]);

	if (is_v6)
		sum += sum_of_change4(from->word[0], to->word[0]) +
		       sum_of_change4(from->word[1], to->word[1]) +
		       sum_of_change4(from->word[2], to->word[2]);
	return sum;
}

#endif
