/*
 * An echo server on two nodes, as an example of prism_handoff.h. Each line of a client is
 * answered by the node that did not answer the line before: the connection moves, and the
 * client notices nothing. The line "ask" is answered by both nodes: the other one is asked
 * on a relay stream.
 *
 *   echo NODE PKI_DIR SERVICE SWITCH KEY NAME ADDRESS NAME ADDRESS
 *
 * KEY has 16 characters, NODE at most 63, and the first NAME accepts clients. The server ends
 * with its standard input.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "prism_handoff.h"

#define MAX_NAME_BYTES 63
#define MAX_LINE_BYTES 4096
/* The context of an export: the unread line is for the node that imports. */
#define YOUR_TURN "your turn"

struct server {
    prism_endpoint *endpoint;
    const char *name;
    const char *other;
};

/* A client's connection, or a relay stream to the other node for one. */
struct session {
    /* The next line is for this node. */
    bool is_my_turn;
    /* It is being handed over. */
    bool is_leaving;
    /* The client sends no more. */
    bool has_ended;
    /* The other node asks on it. */
    bool is_from_node;
    /* The stream on which the other node is asked for this client, or 0. */
    prism_connection asked;
    /* The client that waits for this stream's answer, or 0. */
    prism_connection client;
};

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

static struct session *session_of(struct server *server, prism_connection connection)
{
    return prism_data(server->endpoint, connection);
}

static struct session *begin(struct server *server, prism_connection connection)
{
    struct session *session = calloc(1, sizeof *session);

    if (session == NULL)
        abort();
    check(prism_set_data(server->endpoint, connection, session), "begin");
    return session;
}

/* Frees what belongs to a connection, before the connection itself is gone. */
static void forget(struct server *server, prism_connection connection)
{
    struct session *session = session_of(server, connection);

    if (session == NULL)
        return;
    if (session->asked != 0) {
        prism_connection asked = session->asked;

        free(session_of(server, asked));
        check(prism_close(server->endpoint, asked), "close");
    }
    free(session);
    check(prism_set_data(server->endpoint, connection, NULL), "forget");
}

static void end(struct server *server, prism_connection connection)
{
    forget(server, connection);
    check(prism_close(server->endpoint, connection), "close");
}

static void say(struct server *server, prism_connection connection, const void *text, size_t len)
{
    if (prism_write(server->endpoint, connection, text, len) != PRISM_STATUS_OK)
        fprintf(stderr, "%s: %s\n", server->name, prism_error());
}

/* Writes the name of this server, `between`, and a line. */
static void answer(struct server *server, prism_connection connection, const char *between,
                   const char *line, size_t len)
{
    char text[MAX_NAME_BYTES + sizeof " and " + MAX_LINE_BYTES];
    size_t head = (size_t)snprintf(text, sizeof text, "%s%s", server->name, between);

    memcpy(text + head, line, len);
    say(server, connection, text, head + len);
}

/*
 * The length of the first unread line with its end; 0 if it is not complete, and -1 if it is too
 * long. Such a connection has to end: if too much is unread, nothing more is read from it, and
 * no timeout runs.
 */
static long line_of(struct server *server, prism_connection connection, const char **line)
{
    size_t unread = 0;
    const char *bytes = (const char *)prism_unread(server->endpoint, connection, &unread);
    const char *newline = NULL;

    *line = bytes;
    if (unread > 0)
        newline = memchr(bytes, '\n', unread < MAX_LINE_BYTES ? unread : MAX_LINE_BYTES);
    if (newline != NULL)
        return newline - bytes + 1;
    return unread < MAX_LINE_BYTES ? 0 : -1;
}

static void ask_other(struct server *server, prism_connection client, struct session *session)
{
    prism_connection asked = prism_relay(server->endpoint, server->other);

    if (asked == 0)
        die("relay");
    begin(server, asked)->client = client;
    session->asked = asked;
    say(server, asked, "who\n", 4);
}

static void answer_lines(struct server *server, prism_connection client)
{
    struct session *session = session_of(server, client);
    const char *line;
    long len = 0;

    while (session->asked == 0 && (len = line_of(server, client, &line)) > 0) {
        if (!session->is_my_turn) {
            if (session->is_leaving)
                return;
            session->is_leaving = true;
            /* The line is not consumed, so it moves with the connection. */
            check(prism_export(server->endpoint, client, server->other,
                               (const uint8_t *)YOUR_TURN, strlen(YOUR_TURN)),
                  "export");
            return;
        }
        if (len == 4 && memcmp(line, "ask\n", len) == 0) {
            ask_other(server, client, session);
        } else {
            answer(server, client, ": ", line, (size_t)len);
        }
        check(prism_consume(server->endpoint, client, (size_t)len), "consume");
        session->is_my_turn = false;
    }
    if (session->asked == 0 && (session->has_ended || len < 0))
        end(server, client);
}

/* The other node has answered on a relay stream: the answer is passed on to the client. */
static void pass_on(struct server *server, prism_connection asked, prism_connection client)
{
    const char *line;
    long len = line_of(server, asked, &line);

    if (len < 0) {
        end(server, client);
    } else if (len > 0) {
        answer(server, client, " and ", line, (size_t)len);
        session_of(server, client)->asked = 0;
        end(server, asked);
        answer_lines(server, client);
    }
}

static void on_ready(void *user)
{
    struct server *server = user;

    printf("%s is ready\n", server->name);
    fflush(stdout);
}

static void on_client(void *user, prism_connection client)
{
    struct server *server = user;
    size_t len = 0;
    const uint8_t *context = prism_context(server->endpoint, client, &len);
    struct session *session = begin(server, client);

    session->is_my_turn = len == strlen(YOUR_TURN) && memcmp(context, YOUR_TURN, len) == 0;
    answer_lines(server, client);
}

/* Another node asks. */
static void on_relay(void *user, prism_connection stream, const char *peer)
{
    (void)peer;
    begin(user, stream)->is_from_node = true;
}

static void on_data(void *user, prism_connection connection)
{
    struct server *server = user;
    struct session *session = session_of(server, connection);
    const char *line;
    long len;

    if (session->client != 0) {
        pass_on(server, connection, session->client);
    } else if (!session->is_from_node) {
        answer_lines(server, connection);
    } else if ((len = line_of(server, connection, &line)) < 0) {
        end(server, connection);
    } else if (len > 0) {
        answer(server, connection, "\n", "", 0);
        check(prism_consume(server->endpoint, connection, (size_t)len), "consume");
    }
}

static void on_exported(void *user, prism_connection client, prism_outcome outcome,
                        const char *reason)
{
    struct server *server = user;

    if (outcome == PRISM_OUTCOME_KEPT) {
        fprintf(stderr, "%s keeps a connection: %s\n", server->name, reason);
        session_of(server, client)->is_my_turn = true;
        session_of(server, client)->is_leaving = false;
        answer_lines(server, client);
        return;
    }
    forget(server, client);
}

static void on_end(void *user, prism_connection connection, const char *reason)
{
    struct server *server = user;
    struct session *session = session_of(server, connection);

    if (session->client != 0) {
        fprintf(stderr, "%s: no answer: %s\n", server->name, reason ? reason : "it ended");
        end(server, session->client);
    } else if (reason != NULL || session->is_from_node) {
        end(server, connection);
    } else {
        session->has_ended = true;
        answer_lines(server, connection);
    }
}

static prism_endpoint *open_endpoint(struct server *server, char **argv)
{
    const prism_callbacks callbacks = {
        .on_ready = on_ready,
        .on_client = on_client,
        .on_relay = on_relay,
        .on_data = on_data,
        .on_exported = on_exported,
        .on_end = on_end,
    };
    const char *first = argv[6];
    prism_config *config = prism_config_new(server->name, argv[2]);
    prism_endpoint *endpoint;

    if (config == NULL)
        die("configuration");
    check(prism_config_add_service(config, argv[3]), "service");
    check(prism_config_set_switch(config, argv[4], 1, (const uint8_t *)argv[5]), "switch");
    check(prism_config_add_node(config, argv[6], argv[7]), "node");
    check(prism_config_add_node(config, argv[8], argv[9]), "node");
    check(prism_config_set_listen(config, strcmp(server->name, first) == 0), "listen");
    endpoint = prism_endpoint_open(config, &callbacks, server);
    if (endpoint == NULL)
        die("open");
    prism_config_free(config);
    return endpoint;
}

int main(int argc, char **argv)
{
    struct server server = {0};
    struct pollfd waits[2];

    if (argc != 10 || strlen(argv[5]) != 16 || strlen(argv[1]) > MAX_NAME_BYTES) {
        fprintf(stderr, "usage: see the head of echo.c\n");
        return 2;
    }
    server.name = argv[1];
    server.other = strcmp(argv[1], argv[6]) == 0 ? argv[8] : argv[6];
    server.endpoint = open_endpoint(&server, argv);
    waits[0] = (struct pollfd){.fd = prism_endpoint_fd(server.endpoint), .events = POLLIN};
    waits[1] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    do {
        if (poll(waits, 2, -1) < 0)
            return 1;
        if (waits[0].revents != 0)
            check(prism_endpoint_poll(server.endpoint), "poll");
    } while (waits[1].revents == 0);
    check(prism_endpoint_free(server.endpoint), "free");
    return 0;
}
