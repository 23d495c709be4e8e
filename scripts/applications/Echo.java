import java.io.FileInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.WebSocket;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** The client of the JDK for WebSockets: `java Echo.java URL CA_FILE`. Its upgrades have a length of 0. */
class Echo implements WebSocket.Listener {
    private final StringBuilder text = new StringBuilder();
    private final CompletableFuture<String> whole = new CompletableFuture<>();

    @Override
    public CompletionStage<?> onText(WebSocket socket, CharSequence part, boolean isLast) {
        text.append(part);
        if (isLast) whole.complete(text.toString());
        return WebSocket.Listener.super.onText(socket, part, isLast);
    }

    @Override
    public void onError(WebSocket socket, Throwable error) {
        whole.completeExceptionally(error);
    }

    public static void main(String[] arguments) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null);
        try (FileInputStream file = new FileInputStream(arguments[1])) {
            trusted.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted);
        SSLContext tls = SSLContext.getInstance("TLS");
        tls.init(null, managers.getTrustManagers(), null);
        HttpClient client = HttpClient.newBuilder().sslContext(tls).build();
        for (int n = 0; n < 20; n++) {
            Echo echo = new Echo();
            WebSocket socket = client.newWebSocketBuilder().buildAsync(URI.create(arguments[0]), echo).get(10, TimeUnit.SECONDS);
            String said = ("message " + n + " ").repeat(10000);
            socket.sendText(said, true).get(10, TimeUnit.SECONDS);
            if (!echo.whole.get(10, TimeUnit.SECONDS).equals(said)) throw new IllegalStateException("another message");
            socket.sendClose(WebSocket.NORMAL_CLOSURE, "").get(10, TimeUnit.SECONDS);
        }
    }
}
