// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The control message (docs/protocol.md, section 1): 120 bytes with the same layout in both
 * directions, and big-endian integers. The Rust codec is prism_proto::control; the build of
 * prism-switch compares the two.
 */
#ifndef PRISM_WIRE_H
#define PRISM_WIRE_H

#include <stddef.h>
#include <linux/types.h>

#define CONTROL_MAGIC 0x5052534dU
#define CONTROL_VERSION 2
#define CONTROL_REQUEST 1
#define CONTROL_ANSWER 2

/* An IPv6 address, or an IPv4 one in its mapped form. */
struct ip_addr {
	__be32 word[4];
};

struct control_message {
	__be32 magic;
	__u8 version;
	__u8 kind;
	__u8 ops;
	__u8 status;
	__be32 key_id;
	__u8 state;
	__u8 term[3];		/* big-endian; zero: none */
	__be64 request_id;
	__be64 time_ns;
	__be64 epoch;
	struct ip_addr client_addr;
	struct ip_addr vip_addr;
	struct ip_addr owner_addr;
	struct ip_addr via_addr;
	__be16 client_port;
	__be16 vip_port;
	__be16 owner_port;
	__be16 owner_run;	/* run of the owner's node; 0: unknown */
	__be64 mac;
};

#define WIRE_OFFSET(field, at) \
	_Static_assert(offsetof(struct control_message, field) == (at), #field)
_Static_assert(sizeof(struct control_message) == 120, "control message");
WIRE_OFFSET(kind, 5);
WIRE_OFFSET(ops, 6);
WIRE_OFFSET(status, 7);
WIRE_OFFSET(key_id, 8);
WIRE_OFFSET(state, 12);
WIRE_OFFSET(term, 13);
WIRE_OFFSET(request_id, 16);
WIRE_OFFSET(time_ns, 24);
WIRE_OFFSET(epoch, 32);
WIRE_OFFSET(client_addr, 40);
WIRE_OFFSET(vip_addr, 56);
WIRE_OFFSET(owner_addr, 72);
WIRE_OFFSET(via_addr, 88);
WIRE_OFFSET(client_port, 104);
WIRE_OFFSET(vip_port, 106);
WIRE_OFFSET(owner_port, 108);
WIRE_OFFSET(owner_run, 110);
WIRE_OFFSET(mac, 112);

enum control_op {
	OP_BLOCK = 1,
	OP_OWN = 2,
	OP_UNBLOCK = 4,
	OP_RELEASE = 8,
	OP_ALL = 15,
	OP_ANNOUNCE = 16,	/* with the above: states them, see term.h */
	OP_PASS = 32,		/* with OP_OWN: struct pass is in the place of owner_addr */
};

/* The word of a flow's owner that the sender may take it; see contain.h. */
struct pass {
	__be64 mac;
	__be32 through;		/* key of the node that passed it on; 0: none */
	__u8 at_service;	/* the owner's address is vip_addr, otherwise via_addr */
	__u8 zero[3];
};
_Static_assert(sizeof(struct pass) == sizeof(struct ip_addr), "pass");

enum control_status {
	/* Inside the program only: no answer is sent, and the sender repeats. */
	STATUS_BUSY = 0,
	STATUS_OK = 1,
	STATUS_STALE = 2,
	STATUS_FULL = 3,
	STATUS_DENIED = 4,
	STATUS_NO_SERVICE = 5,
	STATUS_LATE = 6,
	STATUS_BAD_REQUEST = 7,
	STATUS_AHEAD = 8,
	STATUS_YOUNG = 9,
	STATUS_OLD_TERM = 10,
};

enum flow_state {
	FLOW_ABSENT = 0,
	FLOW_FORWARD = 1,
	FLOW_BLOCKED = 2,
};

#endif
