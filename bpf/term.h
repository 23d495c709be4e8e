// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Terms (docs/design/terms.md). While its table may lack flows, the switch decides nothing: it
 * takes what nodes announce. The rules are those of prism_proto::term; the agent keeps the term,
 * and the programs read it.
 *
 * A flow that was announced or decided in the present term has the term's generation. Any other
 * one is a hint from before: packets go by it, and the first announcement replaces it. When the
 * term has settled, it is over.
 */
#ifndef PRISM_TERM_H
#define PRISM_TERM_H

#include "maps.h"

/* The way with an authentic command; prism_proto::term::Admission. */
enum admission {
	ADMIT_JUDGE,
	ADMIT_MERGE,
	ADMIT_COMPARE,
	ADMIT_YOUNG,		/* refuse it as STATUS_YOUNG */
	ADMIT_OLD_TERM,
	ADMIT_SILENCE,
};

/* A command's admission, and the term by which it was decided. */
struct way {
	struct term term;
	enum admission admission;
	bool announces;
};

/* The present term, all of one moment. */
static __always_inline struct term term_now(void)
{
	__u32 zero = 0;
	struct term_state *state = bpf_map_lookup_elem(&term_state, &zero);
	union {
		__u64 word;
		struct term term;
	} now = {};

	if (state)
		now.word = *(volatile __u64 *)&state->now;
	return now.term;
}

/* Whether packets of unknown flows, and resets, are dropped. */
static __always_inline bool is_undecided(const struct term *t)
{
	return t->phase == TERM_YOUNG || t->phase == TERM_STANDBY;
}

static __always_inline bool is_undecided_now(void)
{
	struct term t = term_now();

	return is_undecided(&t);
}

/* Whether another host is the arbiter: entries of flows here are copies. */
static __always_inline bool is_standby_now(void)
{
	struct term t = term_now();

	return t.phase == TERM_STANDBY;
}

static __always_inline __u32 term_number(const struct control_message *m)
{
	return m->term[0] << 16 | m->term[1] << 8 | m->term[2];
}

/* SwitchTerm::admit. Without a term, commands are judged as by releases without terms. */
static __always_inline enum admission admit(const struct term *t, __u32 stamp,
					    __u8 ops)
{
	bool is_announced = ops & OP_ANNOUNCE;

	if (t->phase == TERM_NONE)
		return ADMIT_JUDGE;
	if (t->phase == TERM_STANDBY)
		return is_announced ? ADMIT_MERGE : ADMIT_SILENCE;
	if (stamp > t->number)
		return ADMIT_SILENCE;
	if (!ops)
		return ADMIT_JUDGE;
	if (t->phase == TERM_YOUNG)
		return is_announced && stamp == t->number ? ADMIT_MERGE :
							    ADMIT_YOUNG;
	if (is_announced)
		return ADMIT_COMPARE;
	return stamp == t->number || !stamp ? ADMIT_JUDGE : ADMIT_OLD_TERM;
}

static __always_inline bool is_of_term(const struct flow *f, const struct term *t)
{
	__u8 marks = *(volatile const __u8 *)&f->marks;

	return marks >> GENERATION_SHIFT == t->generation;
}

/* Whether the flow is over because nobody has announced it in the settled term. */
static __always_inline bool is_forgotten(const struct flow *f,
					 const struct term *t)
{
	return t->phase == TERM_SETTLED && f->state != FLOW_ABSENT &&
	       !is_of_term(f, t);
}

#endif
