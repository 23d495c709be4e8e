/*
 * The C interface of Prism's hand-off library. docs/library.md explains it.
 *
 * This file is generated from crates/prism-handoff-c/src by cbindgen:
 *   PRISM_WRITE_HEADER=1 cargo test --release -p prism-handoff-c header
 */

#ifndef PRISM_HANDOFF_H
#define PRISM_HANDOFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * The result of a call. All but PRISM_STATUS_OK leave a message for prism_error().
 */
enum prism_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * It worked.
   */
  PRISM_STATUS_OK = 0,
  /**
   * An argument is null, malformed or too large.
   */
  PRISM_STATUS_INVALID = -1,
  /**
   * There is no such connection any more.
   */
  PRISM_STATUS_GONE = -2,
  /**
   * Not now: an export is under way, too much is unwritten, or a callback is running.
   */
  PRISM_STATUS_BUSY = -3,
  /**
   * The operating system refused; the message has its reason.
   */
  PRISM_STATUS_SYSTEM = -4,
  /**
   * The calling thread is not the one that opened the endpoint.
   */
  PRISM_STATUS_WRONG_THREAD = -5,
  /**
   * The worker has stopped. The endpoint can only be freed.
   */
  PRISM_STATUS_STOPPED = -6,
  /**
   * An error in this library.
   */
  PRISM_STATUS_INTERNAL = -7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum prism_status prism_status;
#else
typedef int32_t prism_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How an export has ended.
 */
enum prism_outcome
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * The peer has the connection.
   */
  PRISM_OUTCOME_MOVED = 0,
  /**
   * The connection is still here, and works as before.
   */
  PRISM_OUTCOME_KEPT = 1,
  /**
   * The connection has ended.
   */
  PRISM_OUTCOME_LOST = 2,
  /**
   * The connection has left this node, and whether the peer has it is unknown.
   */
  PRISM_OUTCOME_UNKNOWN = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum prism_outcome prism_outcome;
#else
typedef int32_t prism_outcome;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The configuration of an endpoint.
 */
typedef struct prism_config prism_config;

/**
 * A worker of a node.
 */
typedef struct prism_endpoint prism_endpoint;

/**
 * A connection of an endpoint. 0 is none, and no number is used twice.
 */
typedef uint64_t prism_connection;

/**
 * The callbacks of an endpoint. They get the pointer that the program has given to
 * prism_endpoint_open(). Each may be null. A callback may make any call but
 * prism_endpoint_poll() and prism_endpoint_free(), and returns normally (no longjmp, no
 * exceptions). Text is valid until the callback returns.
 */
typedef struct prism_callbacks {
  /**
   * The switch has answered. No connection moves before that.
   */
  void (*on_ready)(void *user);
  /**
   * A client's connection: accepted here, or imported with prism_context(). Bytes may be
   * unread already; on_data does not tell of these.
   */
  void (*on_client)(void *user, prism_connection connection);
  /**
   * A stream on which another node relays.
   */
  void (*on_relay)(void *user, prism_connection connection, const char *peer);
  /**
   * There is more to read: prism_unread().
   */
  void (*on_data)(void *user, prism_connection connection);
  /**
   * The kernel has taken all that was written.
   */
  void (*on_written)(void *user, prism_connection connection);
  /**
   * An export has ended, with the reason if the connection was kept. Otherwise the
   * connection is gone once this returns.
   */
  void (*on_exported)(void *user,
                      prism_connection connection,
                      prism_outcome outcome,
                      const char *reason);
  /**
   * Nothing more can be read. The reason is null if the other side has closed its
   * direction; it may still wait for an answer. If a write fails after that, this is
   * called a second time, with the reason. The connection lasts until prism_close().
   */
  void (*on_end)(void *user, prism_connection connection, const char *reason);
} prism_callbacks;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The message of the last error in this thread; empty before the first one. It is valid until
 * the next call that fails in this thread, also in a callback, or until the thread ends.
 */
const char *prism_error(void);

/**
 * A configuration of the node `node`, whose certificate and authority are in the directory
 * `pki_dir` (`prism pki`). Null after an error.
 *
 * The caller has to make sure:
 * Both are text that ends with a byte of value 0.
 */
struct prism_config *prism_config_new(const char *node,
                                      const char *pki_dir);

/**
 * Frees a configuration. Endpoints that were opened with it stay as they are.
 */
void prism_config_free(struct prism_config *config);

/**
 * Adds a node, this one or another one, or a second address of it. All nodes have to be added.
 *
 * The caller has to make sure:
 * Both are text that ends with a byte of value 0.
 */
prism_status prism_config_add_node(struct prism_config *config,
                                   const char *name,
                                   const char *address);

/**
 * Adds an address that clients connect to, as `192.0.2.1:7` or `[2001:db8::1]:7`.
 *
 * The caller has to make sure:
 * It is text that ends with a byte of value 0.
 */
prism_status prism_config_add_service(struct prism_config *config, const char *address);

/**
 * Sets the switch: its control address, and the key of 16 bytes that the switch and all nodes
 * share, under the number `key_id`. Without a switch no connection moves.
 *
 * The caller has to make sure:
 * `address` is text that ends with a byte of value 0, and `key` has 16 bytes.
 */
prism_status prism_config_set_switch(struct prism_config *config,
                                     const char *address,
                                     uint32_t key_id,
                                     const uint8_t *key);

/**
 * Sets whether this node accepts clients; it then has the service addresses. Default no.
 */
prism_status prism_config_set_listen(struct prism_config *config, bool listen);

/**
 * Sets the port on which all nodes speak to each other. Default 7400.
 */
prism_status prism_config_set_node_port(struct prism_config *config, uint16_t port);

/**
 * Sets the time after which a connection that sends or takes nothing ends, in milliseconds.
 * Default 60,000. A client's connection of which nothing was consumed, and to which nothing was
 * written, ends 30 s after it was accepted, or earlier if many such connections wait.
 */
prism_status prism_config_set_timeout_ms(struct prism_config *config,
                                         uint32_t ms);

/**
 * Opens an endpoint: binds its addresses and starts its worker, and waits for that. `user` is
 * what callbacks get. Configuration and callbacks are copied. Null after an error. All later
 * calls have to come from the calling thread.
 * The threads of the library block all signals.
 */
struct prism_endpoint *prism_endpoint_open(const struct prism_config *config,
                                           const struct prism_callbacks *callbacks,
                                           void *user);

/**
 * Closes all connections, ends the worker, waits for that, and frees the endpoint. Not in a
 * callback. Bytes that no kernel has taken are lost, also those of a connection after
 * prism_close(): on_written tells of them before it.
 *
 * The caller has to make sure:
 * The endpoint is null or was opened and not freed, and is not used afterwards if this
 * returns PRISM_STATUS_OK.
 */
prism_status prism_endpoint_free(struct prism_endpoint *endpoint);

/**
 * The descriptor that is readable when prism_endpoint_poll() has something to do; -1 after an
 * error. The endpoint closes it when it is freed. A loop only waits for it, and does not read
 * from it.
 */
int prism_endpoint_fd(const struct prism_endpoint *endpoint);

/**
 * Runs the callbacks of all events so far, and does not wait.
 */
prism_status prism_endpoint_poll(const struct prism_endpoint *endpoint);

/**
 * A stream on which the node `peer` answers; 0 after an error. It can be written to at once.
 * If the peer is out of reach, on_end says so.
 *
 * The caller has to make sure:
 * `peer` is text that ends with a byte of value 0.
 */
prism_connection prism_relay(const struct prism_endpoint *endpoint,
                             const char *peer);

/**
 * Hands a client's connection over to the node `peer`, with all that is written first, with
 * the unread bytes, and with a context of at most 4096 bytes for the program there.
 * on_exported says how that ended, some 15 s at most after the kernel has taken what is written.
 * Until then prism_consume(), prism_write() and another export are PRISM_STATUS_BUSY.
 *
 * The caller has to make sure:
 * `peer` is text that ends with a byte of value 0, and `context` has `len` bytes.
 */
prism_status prism_export(const struct prism_endpoint *endpoint,
                          prism_connection connection,
                          const char *peer,
                          const uint8_t *context,
                          size_t len);

/**
 * The unread bytes, whose number goes to `len`; null after an error. The pointer is valid until
 * the next prism_endpoint_poll() or prism_endpoint_free(), also if the bytes are consumed, more
 * are read, or the connection ends. While 256 KiB are unread nothing more is read and no timeout
 * runs: consume them or close. At most some 512 KiB are read ahead.
 */
const uint8_t *prism_unread(const struct prism_endpoint *endpoint,
                            prism_connection connection,
                            size_t *len);

/**
 * The context of an imported connection, valid as prism_unread(). It is empty for others.
 */
const uint8_t *prism_context(const struct prism_endpoint *endpoint,
                             prism_connection connection,
                             size_t *len);

/**
 * Consumes the first `len` unread bytes. Bytes that are not consumed move with an export.
 */
prism_status prism_consume(const struct prism_endpoint *endpoint,
                           prism_connection connection,
                           size_t len);

/**
 * Writes a copy of `len` bytes, at most 8 MiB. PRISM_STATUS_BUSY if more than 8 MiB would wait:
 * on_written says when none do. If a write fails, on_end tells why, and later ones are dropped.
 *
 * The caller has to make sure:
 * `data` has `len` bytes.
 */
prism_status prism_write(const struct prism_endpoint *endpoint,
                         prism_connection connection,
                         const uint8_t *data,
                         size_t len);

/**
 * Closes a connection when all is written. It is gone at once for the program, and no callback
 * tells of it any more. During an export it is closed only if it stays here.
 */
prism_status prism_close(const struct prism_endpoint *endpoint,
                         prism_connection connection);

/**
 * The client's address and port, or the name of the peer of a relay stream; null after an
 * error. Valid as long as the connection, and after its end as prism_unread().
 */
const char *prism_from(const struct prism_endpoint *endpoint,
                       prism_connection connection);

/**
 * The name of the node that accepted the connection, valid as prism_from().
 */
const char *prism_origin(const struct prism_endpoint *endpoint,
                         prism_connection connection);

/**
 * Keeps a pointer of the program with the connection. The library never follows or frees it.
 */
prism_status prism_set_data(const struct prism_endpoint *endpoint,
                            prism_connection connection,
                            void *data);

/**
 * The pointer of prism_set_data(); null before it and after an error.
 */
void *prism_data(const struct prism_endpoint *endpoint, prism_connection connection);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PRISM_HANDOFF_H */
