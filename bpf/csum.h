// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Incremental one's complement checksums (RFC 1624, equation 3), on 16-bit words in network
 * order. The byte order does not matter for them.
 */
#ifndef PRISM_CSUM_H
#define PRISM_CSUM_H

#include <linux/types.h>

/* Folds a sum into one word. */
static __always_inline __u16 sum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The checksum field of a packet with this sum. */
static __always_inline __u16 csum_fold(__u64 sum)
{
	return ~sum_fold(sum);
}

/* The summand for replacing an address. */
static __always_inline __u64 sum_of_change4(__u32 from, __u32 to)
{
	return (__u64)(__u32)~from + to;
}

/* The summand for replacing a word. */
static __always_inline __u64 sum_of_change2(__u16 from, __u16 to)
{
	return (__u64)(__u16)~from + to;
}

static __always_inline void csum_replace2(__u16 *check, __u16 from, __u16 to)
{
	*check = csum_fold((__u16)~*check + sum_of_change2(from, to));
}

/* A sum with carries, as the kernel's helpers take it. */
static __always_inline __u32 sum_fold4(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

#endif
