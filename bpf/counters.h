// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Every verdict has a name and a counter, unless the packet is not for the switch. This list
 * is the only definition: user space reads the names from the object file.
 */
#ifndef PRISM_COUNTERS_H
#define PRISM_COUNTERS_H

/* clang-format off */
#define COUNTERS(X)                                                            \
	/* Packets sent on. */                                                 \
	X(forward_to_owner)       /* client to the owner, rewritten */         \
	X(forward_to_frontend)    /* client to a frontend */                   \
	X(forward_to_client)      /* owner to client, as the VIP */            \
	X(forward_from_frontend)  /* frontend to client */                     \
	X(forward_in_tunnel)      /* host mode: to another node's host */      \
	X(forward_icmp)           /* ICMP error about a flow, to its owner */  \
	X(seen_ip_options)        /* the above with IP options or extensions */\
	X(seen_neighbour_missing) /* the above that wait for a neighbour */    \
	/* Packets left to the kernel of this host. */                         \
	X(punt_ttl)               /* TTL spent: the kernel answers */          \
	X(punt_mtu)               /* too large: the kernel answers or cuts */  \
	X(punt_no_route)          /* no route, or an address of this host */   \
	X(punt_no_frontend)       /* the service has no frontend */            \
	X(punt_truncated)         /* headers are not whole */                  \
	X(punt_tagged)            /* frame of a VLAN other than 0 */           \
	X(punt_xdp)               /* XDP leaves it to the tc program */        \
	X(punt_here)              /* host mode: this host may answer it */     \
	/* Packets dropped. */                                                 \
	X(drop_blocked)           /* the flow is blocked */                    \
	X(drop_released)          /* late packet of a connection that is over */\
	X(drop_syn_refused)       /* an owner's reset, as it has no such socket */\
	X(drop_late_reset)        /* an owner's, after both ends have closed */ \
	X(drop_young)             /* of an unknown flow, in a young term */    \
	X(drop_young_reset)       /* a RST to a client, in a young term */     \
	X(drop_not_owner)         /* from a frontend that does not own it */   \
	X(drop_unmatched_backend) /* TCP of a backend that matches no flow */  \
	X(drop_icmp_backend)      /* a backend's ICMP error about a flow */    \
	X(drop_fragment)          /* IP fragment of service TCP */             \
	X(drop_extension)         /* IPv6 extension headers that may hide it */\
	X(drop_tagged)            /* frame with three tags or more of VLAN 0 */\
	X(drop_mtu)               /* too large for the path to the owner */    \
	X(drop_no_socket)         /* host mode: no socket for it is here */    \
	X(drop_no_way)            /* host mode: it cannot reach the owner */   \
	X(drop_tunnel)            /* host mode: of a tunnel, and not TCP */    \
	X(drop_store)             /* the kernel refused to write the packet */ \
	/* Flows. */                                                           \
	X(flow_syn_challenged)    /* a SYN of a live flow went to its owner */ \
	X(flow_syn_purged)        /* a SYN ended the flow before it */         \
	X(flow_expired)           /* the agent removed an idle flow */         \
	X(flow_reset)             /* the agent ended one without an owner */   \
	X(flow_collected)         /* the agent removed a tombstone */          \
	/* Control messages. */                                                \
	X(control_ok)                                                          \
	X(control_stale)                                                       \
	X(control_full)                                                        \
	X(control_denied)                                                      \
	X(control_no_service)                                                  \
	X(control_late)                                                        \
	X(control_bad_request)                                                 \
	X(control_ahead)                                                       \
	X(control_young)                                                       \
	X(control_old_term)                                                    \
	X(control_foreign)        /* denied: about another node's flow */      \
	X(control_interface)      /* not answered: leads to no node */         \
	X(control_malformed)      /* not answered */                           \
	X(control_forged)         /* not answered */                           \
	X(control_busy)           /* not answered: entry is being collected */ \
	X(control_silent)         /* not answered: another switch decides */
/* clang-format on */

#define COUNTER_ENUM(name) COUNTER_##name,
enum counter { COUNTERS(COUNTER_ENUM) COUNTER_COUNT };

#define COUNTER_NAME_BYTES 32
#define COUNTER_NAME(name) #name,
const char counter_names[COUNTER_COUNT][COUNTER_NAME_BYTES]
	__attribute__((used)) = { COUNTERS(COUNTER_NAME) };

#endif
