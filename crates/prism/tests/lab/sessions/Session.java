// The AWS SDK for Java, version 2. A failure is not tried again.

import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.URL;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.http.apache.ApacheHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.retries.DefaultRetryStrategy;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.S3Configuration;
import software.amazon.awssdk.services.s3.model.ChecksumAlgorithm;
import software.amazon.awssdk.services.s3.model.CompletedPart;
import software.amazon.awssdk.services.s3.model.NoSuchKeyException;
import software.amazon.awssdk.services.s3.model.ObjectIdentifier;
import software.amazon.awssdk.services.s3.presigner.S3Presigner;

public final class Session {
    private static final int PART = 8 << 20;

    private final String bucket = System.getenv("BUCKET");
    private final Path shared = Path.of(System.getenv("SHARED"));
    private final URI endpoint = URI.create(System.getenv("AWS_ENDPOINT_URL"));
    private final TrustManagerFactory trust = trusting(Path.of(System.getenv("CA_FILE")));
    private final Region region = Region.of(System.getenv("AWS_DEFAULT_REGION"));
    private final S3Configuration pathStyle =
            S3Configuration.builder().pathStyleAccessEnabled(true).build();
    private final S3Client s3 = S3Client.builder()
            .endpointOverride(endpoint)
            .region(region)
            .serviceConfiguration(pathStyle)
            .overrideConfiguration(o -> o.retryStrategy(DefaultRetryStrategy.doNotRetry()))
            .httpClient(ApacheHttpClient.builder()
                    .tlsTrustManagersProvider(trust::getTrustManagers)
                    .build())
            .build();

    private Session() throws Exception {}

    public static void main(String[] arguments) throws Exception {
        Session session = new Session();
        session.s3.createBucket(b -> b.bucket(session.bucket));
        List<String> keys = session.small();
        session.large();
        keys.addAll(List.of("large", "copy"));
        session.lists();
        session.deletes(keys);
    }

    private List<String> small() throws Exception {
        List<String> keys = new ArrayList<>();
        try (var files = Files.walk(shared.resolve("tree"))) {
            for (Path file : (Iterable<Path>) files.filter(Files::isRegularFile)::iterator) {
                String key = shared.relativize(file).toString();
                keys.add(key);
                s3.putObject(
                        b -> b.bucket(bucket).key(key).metadata(Map.of("name", "value")),
                        RequestBody.fromFile(file));
                var got = s3.getObjectAsBytes(b -> b.bucket(bucket).key(key));
                same(got.asByteArray(), Files.readAllBytes(file), key);
                check(got.response().metadata().equals(Map.of("name", "value")), key);
            }
        }
        return keys;
    }

    private void large() throws Exception {
        byte[] all = Files.readAllBytes(shared.resolve("large"));
        String upload = s3.createMultipartUpload(
                        b -> b.bucket(bucket).key("large").checksumAlgorithm(ChecksumAlgorithm.CRC32))
                .uploadId();
        List<CompletedPart> parts = new ArrayList<>();
        for (int at = 0, number = 1; at < all.length; at += PART, number++) {
            byte[] part = Arrays.copyOfRange(all, at, Math.min(at + PART, all.length));
            int n = number;
            var done = s3.uploadPart(
                    b -> b.bucket(bucket).key("large").uploadId(upload).partNumber(n)
                            .checksumAlgorithm(ChecksumAlgorithm.CRC32),
                    RequestBody.fromBytes(part));
            parts.add(CompletedPart.builder()
                    .partNumber(n)
                    .eTag(done.eTag())
                    .checksumCRC32(done.checksumCRC32())
                    .build());
        }
        s3.completeMultipartUpload(b -> b.bucket(bucket).key("large").uploadId(upload)
                .multipartUpload(m -> m.parts(parts)));
        var slice = s3.getObjectAsBytes(b -> b.bucket(bucket).key("large").range("bytes=1000001-1070000"));
        same(slice.asByteArray(), Files.readAllBytes(shared.resolve("slice")), "slice");
        s3.copyObject(b -> b.sourceBucket(bucket).sourceKey("large")
                .destinationBucket(bucket).destinationKey("copy"));
        same(s3.getObjectAsBytes(b -> b.bucket(bucket).key("copy")).asByteArray(), all, "copy");
        same(presigned("copy"), all, "presigned");
    }

    private byte[] presigned(String key) throws Exception {
        try (S3Presigner presigner = S3Presigner.builder()
                .endpointOverride(endpoint)
                .region(region)
                .serviceConfiguration(pathStyle)
                .build()) {
            URL url = presigner.presignGetObject(p -> p.signatureDuration(Duration.ofMinutes(5))
                            .getObjectRequest(b -> b.bucket(bucket).key(key)))
                    .url();
            HttpURLConnection connection = (HttpURLConnection) url.openConnection();
            if (connection instanceof HttpsURLConnection https) {
                SSLContext context = SSLContext.getInstance("TLS");
                context.init(null, trust.getTrustManagers(), null);
                https.setSSLSocketFactory(context.getSocketFactory());
            }
            try (InputStream in = connection.getInputStream()) {
                return in.readAllBytes();
            }
        }
    }

    private void lists() throws Exception {
        List<String> keys = new ArrayList<>();
        s3.listObjectsV2Paginator(b -> b.bucket("keys")).contents().forEach(o -> keys.add(o.key()));
        check(keys.equals(Files.readAllLines(shared.resolve("keys"))), "keys");
        List<String> folders = new ArrayList<>();
        s3.listObjectsV2Paginator(b -> b.bucket("keys").delimiter("/").maxKeys(30))
                .commonPrefixes()
                .forEach(p -> folders.add(p.prefix()));
        check(folders.equals(Files.readAllLines(shared.resolve("folders"))), "folders");
    }

    private void deletes(List<String> keys) {
        List<ObjectIdentifier> objects = new ArrayList<>();
        keys.forEach(key -> objects.add(ObjectIdentifier.builder().key(key).build()));
        var answer = s3.deleteObjects(b -> b.bucket(bucket).delete(d -> d.objects(objects)));
        check(answer.deleted().size() == keys.size() && answer.errors().isEmpty(), "deleted");
        try {
            s3.headObject(b -> b.bucket(bucket).key("copy"));
            check(false, "a deleted object is there");
        } catch (NoSuchKeyException gone) {
            // As it should be.
        }
        s3.deleteBucket(b -> b.bucket(bucket));
    }

    private static TrustManagerFactory trusting(Path authority) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream pem = Files.newInputStream(authority)) {
            store.setCertificateEntry("lab", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        return trust;
    }

    private static void same(byte[] got, byte[] wanted, String what) {
        check(Arrays.equals(got, wanted), what);
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
