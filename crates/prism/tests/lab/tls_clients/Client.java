// Usage: Client HOST PORT CA VERSION SUITE LIST DIRECTORY
// GETs the paths of LIST with java.net.http, the n-th answer's body into
// DIRECTORY/n. Prints "VERSION SUITE" as negotiated.

import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSession;
import javax.net.ssl.TrustManagerFactory;

public final class Client {
    public static void main(String[] arguments) throws Exception {
        String host = arguments[0], port = arguments[1], list = arguments[5];
        String address = (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
        SSLParameters parameters = new SSLParameters();
        parameters.setProtocols(new String[] {"TLSv" + arguments[3]});
        parameters.setCipherSuites(new String[] {arguments[4]});
        HttpClient client = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .sslContext(trusting(Path.of(arguments[2])))
                .sslParameters(parameters)
                .connectTimeout(Duration.ofSeconds(10))
                .build();
        int n = 0;
        String said = "";
        for (String path : Files.readString(Path.of(list)).split("\\s+")) {
            HttpRequest request = HttpRequest.newBuilder(URI.create("https://" + address + path))
                    .timeout(Duration.ofSeconds(30))
                    .build();
            HttpResponse<byte[]> answer = client.send(request, HttpResponse.BodyHandlers.ofByteArray());
            if (answer.statusCode() != 200) {
                throw new IllegalStateException(path + ": " + answer.statusCode());
            }
            Files.write(Path.of(arguments[6], String.valueOf(n++)), answer.body());
            SSLSession session = answer.sslSession().orElseThrow();
            said = session.getProtocol() + " " + session.getCipherSuite();
        }
        System.out.println(said);
    }

    private static SSLContext trusting(Path authority) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream pem = Files.newInputStream(authority)) {
            store.setCertificateEntry("lab", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context;
    }
}
