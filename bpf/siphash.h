// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * SipHash-2-4 (Aumasson and Bernstein, 2012) of the 112 bytes of a control
 * message that its MAC covers, and of the 72 bytes that a pass is for.
 */
#ifndef PRISM_SIPHASH_H
#define PRISM_SIPHASH_H

#include "senders.h"

#define SIGNED_BYTES offsetof(struct control_message, mac)
#define SIGNED_WORDS (SIGNED_BYTES / 8)

#define ROTATE(x, bits) (((x) << (bits)) | ((x) >> (64 - (bits))))

static __always_inline __u64 le64(__u64 word)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return word;
#else
	return __builtin_bswap64(word);
#endif
}

static __always_inline void sip_round(__u64 v[4])
{
	v[0] += v[1];
	v[1] = ROTATE(v[1], 13) ^ v[0];
	v[0] = ROTATE(v[0], 32);
	v[2] += v[3];
	v[3] = ROTATE(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = ROTATE(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = ROTATE(v[1], 17) ^ v[2];
	v[2] = ROTATE(v[2], 32);
}

static __always_inline void sip_absorb(__u64 v[4], __u64 word)
{
	v[3] ^= word;
	sip_round(v);
	sip_round(v);
	v[0] ^= word;
}

static __always_inline void sip_begin(__u64 v[4], const struct sender *sender)
{
	v[0] = sender->key[0] ^ 0x736f6d6570736575ULL;
	v[1] = sender->key[1] ^ 0x646f72616e646f6dULL;
	v[2] = sender->key[0] ^ 0x6c7967656e657261ULL;
	v[3] = sender->key[1] ^ 0x7465646279746573ULL;
}

/* The result after `bytes` bytes, a multiple of eight. */
static __always_inline __be64 sip_end(__u64 v[4], __u64 bytes)
{
	sip_absorb(v, bytes << 56);
	v[2] ^= 0xff;
	sip_round(v);
	sip_round(v);
	sip_round(v);
	sip_round(v);
	return bpf_cpu_to_be64(v[0] ^ v[1] ^ v[2] ^ v[3]);
}

/*
 * The MAC of `message` under `sender`'s key, as on the wire. The function is global and checks
 * its pointers, so that it is verified once by itself, not on each path to it.
 */
__noinline __be64 control_mac(const struct control_message *message,
			      const struct sender *sender)
{
	const __u64 *word = (const __u64 *)message;
	__u64 v[4];

	if (!message || !sender)
		return 0;
	sip_begin(v, sender);
#pragma unroll
	for (int i = 0; i < SIGNED_WORDS; i++)
		sip_absorb(v, le64(word[i]));
	return sip_end(v, SIGNED_BYTES);
}

/* The same of a pass. Its length tells it from a command. */
__noinline __be64 pass_mac(const struct passage *passage,
			   const struct sender *sender)
{
	const __u64 *word = (const __u64 *)passage;
	__u64 v[4];

	if (!passage || !sender)
		return 0;
	sip_begin(v, sender);
#pragma unroll
	for (int i = 0; i < sizeof(*passage) / 8; i++)
		sip_absorb(v, le64(word[i]));
	return sip_end(v, sizeof(*passage));
}

#endif
