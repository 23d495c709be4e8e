/*
 * Each pointer of prism_handoff.h is valid for as long as the header says. This program keeps
 * all that it gets in a poll, with a copy of the bytes, and reads them again in each later
 * callback and after the poll. It is compiled with checks of its memory.
 *
 *   pointers PKI_DIR SERVICE PORT NODE_PORT
 *
 * SERVICE is the address of PORT on loopback.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "prism_handoff.h"

#define MAX_KEPT 256
#define MAX_POLLS 1000
#define POLL_INTERVAL_MS 10
/* The worker reads meanwhile, and its events gather. */
#define GATHER_MS 100
#define PIECE_BYTES (8 << 20)

struct kept {
    const char *name;
    const void *place;
    void *copy;
    size_t len;
};

static prism_endpoint *endpoint;
/* Of the poll that runs, or of the last one. */
static struct kept kept[MAX_KEPT];
static size_t kept_count;
/* The clients in the order of their arrival. */
static prism_connection clients[2];
static size_t client_count;
static unsigned data_events, ends, failures, exports;

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, prism_error());
    exit(1);
}

static void check(prism_status status, const char *what)
{
    if (status != PRISM_STATUS_OK)
        die(what);
}

static void wait_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void keep(const char *name, const void *place, size_t len)
{
    if (place == NULL || kept_count == MAX_KEPT)
        die(name);
    kept[kept_count] = (struct kept){name, place, malloc(len + 1), len};
    memcpy(kept[kept_count].copy, place, len);
    kept_count++;
}

static void keep_all(prism_connection connection)
{
    size_t len = 0;
    const void *bytes = prism_unread(endpoint, connection, &len);

    keep("unread", bytes, len);
    bytes = prism_context(endpoint, connection, &len);
    keep("context", bytes, len);
    bytes = prism_from(endpoint, connection);
    keep("from", bytes, strlen(bytes) + 1);
    bytes = prism_origin(endpoint, connection);
    keep("origin", bytes, strlen(bytes) + 1);
}

static void read_kept(void)
{
    for (size_t i = 0; i < kept_count; i++) {
        if (memcmp(kept[i].place, kept[i].copy, kept[i].len) != 0) {
            fprintf(stderr, "%s has changed\n", kept[i].name);
            exit(1);
        }
    }
}

static void poll_once(void)
{
    for (size_t i = 0; i < kept_count; i++)
        free(kept[i].copy);
    kept_count = 0;
    check(prism_endpoint_poll(endpoint), "poll");
    read_kept();
}

static void poll_until(const unsigned *count, unsigned wanted)
{
    for (int polls = 0; *count < wanted; polls++) {
        if (polls == MAX_POLLS)
            die("a callback is missing");
        wait_ms(POLL_INTERVAL_MS);
        poll_once();
    }
}

static void on_client(void *user, prism_connection client)
{
    (void)user;
    clients[client_count++] = client;
    keep_all(client);
}

static void on_data(void *user, prism_connection client)
{
    (void)user;
    read_kept();
    data_events++;
    keep_all(client);
    /* The first line; what follows it stays unread. */
    if (data_events == 1)
        check(prism_consume(endpoint, client, 4), "consume a part");
    keep_all(client);
}

static void on_exported(void *user, prism_connection client, prism_outcome outcome,
                        const char *reason)
{
    (void)user, (void)reason;
    read_kept();
    if (outcome != PRISM_OUTCOME_LOST)
        die("exported");
    exports++;
    keep_all(client);
}

static void on_end(void *user, prism_connection client, const char *reason)
{
    size_t len = 0;

    (void)user;
    read_kept();
    keep_all(client);
    failures += reason != NULL;
    if (reason == NULL && ends++ == 0) {
        if (prism_unread(endpoint, client, &len) == NULL)
            die("unread");
        check(prism_consume(endpoint, client, len), "consume all");
        read_kept();
        check(prism_close(endpoint, client), "close");
        read_kept();
    }
}

static int connect_to(const char *port)
{
    struct sockaddr_in service = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    int client = socket(AF_INET, SOCK_STREAM, 0);

    service.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(client, (struct sockaddr *)&service, sizeof service) != 0)
        die("connect");
    return client;
}

static void send_piece(int client, const char *piece)
{
    if (send(client, piece, strlen(piece), 0) != (ssize_t)strlen(piece))
        die("send");
    wait_ms(GATHER_MS);
}

/* Several events of one connection in one poll: its bytes move, are consumed, and it ends. */
static void gather(const char *port)
{
    int client = connect_to(port);

    send_piece(client, "one\ntwo\n");
    send_piece(client, "three\n");
    send_piece(client, "four\n");
    shutdown(client, SHUT_WR);
    wait_ms(GATHER_MS);
    poll_until(&ends, 1);
    if (data_events < 2)
        die("the events did not gather");
    close(client);
}

/* An export that loses the connection: it is gone when on_exported has returned. */
static void lose(const char *port)
{
    static const uint8_t piece[PIECE_BYTES];
    int client = connect_to(port);
    char byte;

    send_piece(client, "five\n");
    shutdown(client, SHUT_WR);
    poll_until(&ends, 2);
    check(prism_write(endpoint, clients[1], piece, sizeof piece), "write");
    if (read(client, &byte, 1) != 1)
        die("read");
    /* The client has bytes that it did not read, so this is a reset. */
    close(client);
    for (int polls = 0; failures == 0 && polls < MAX_POLLS; polls++) {
        prism_status status = prism_write(endpoint, clients[1], piece, sizeof piece);

        if (status != PRISM_STATUS_BUSY)
            check(status, "write");
        wait_ms(POLL_INTERVAL_MS);
        poll_once();
    }
    check(prism_export(endpoint, clients[1], "node", NULL, 0), "export");
    poll_until(&exports, 1);
}

int main(int argc, char **argv)
{
    const prism_callbacks callbacks = {
        .on_client = on_client,
        .on_data = on_data,
        .on_exported = on_exported,
        .on_end = on_end,
    };
    prism_config *config;

    if (argc != 5) {
        fprintf(stderr, "usage: see the head of pointers.c\n");
        return 2;
    }
    config = prism_config_new("node", argv[1]);
    if (config == NULL)
        die("configuration");
    check(prism_config_add_node(config, "node", "127.0.0.1"), "node");
    check(prism_config_add_service(config, argv[2]), "service");
    check(prism_config_set_node_port(config, (uint16_t)atoi(argv[4])), "port");
    check(prism_config_set_listen(config, true), "listen");
    endpoint = prism_endpoint_open(config, &callbacks, NULL);
    if (endpoint == NULL)
        die("open");
    prism_config_free(config);
    gather(argv[3]);
    lose(argv[3]);
    check(prism_endpoint_free(endpoint), "free");
    for (size_t i = 0; i < kept_count; i++)
        free(kept[i].copy);
    return 0;
}
