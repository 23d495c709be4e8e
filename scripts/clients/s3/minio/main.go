// A session of minio-go, which sends checksums in trailers and with CompleteMultipartUpload:
// the session of crates/prism/tests/lab/sessions, with its variables in the environment. A
// failure is not tried again.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const partSize = 5 << 20

var (
	ctx    = context.Background()
	bucket = os.Getenv("BUCKET")
	shared = os.Getenv("SHARED")
)

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Output(3, err.Error())
		os.Exit(1)
	}
}

func expect(holds bool, what string) {
	if !holds {
		log.Output(2, what)
		os.Exit(1)
	}
}

func file(name string) []byte {
	return must(os.ReadFile(filepath.Join(shared, name)))
}

func transport() *http.Transport {
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(must(os.ReadFile(os.Getenv("CA_FILE"))))
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities}}
}

func read(s3 *minio.Client, key string) []byte {
	object := must(s3.GetObject(ctx, bucket, key, minio.GetObjectOptions{Checksum: true}))
	defer object.Close()
	return must(io.ReadAll(object))
}

// tree stores the tree of files, reads it back, and returns its keys.
func tree(s3 *minio.Client) (keys []string) {
	check(filepath.WalkDir(filepath.Join(shared, "tree"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		key := must(filepath.Rel(shared, path))
		keys = append(keys, key)
		options := minio.PutObjectOptions{UserMetadata: map[string]string{"Name": "value"}}
		must(s3.FPutObject(ctx, bucket, key, path, options))
		expect(bytes.Equal(read(s3, key), file(key)), key)
		info := must(s3.StatObject(ctx, bucket, key, minio.StatObjectOptions{}))
		expect(info.UserMetadata["Name"] == "value", key)
		return nil
	}))
	return keys
}

func large(s3 *minio.Client) (keys []string) {
	all := file("large")
	options := minio.PutObjectOptions{PartSize: partSize}
	must(s3.FPutObject(ctx, bucket, "large", filepath.Join(shared, "large"), options))
	var part minio.GetObjectOptions
	check(part.SetRange(1000001, 1070000))
	object := must(s3.GetObject(ctx, bucket, "large", part))
	expect(bytes.Equal(must(io.ReadAll(object)), file("slice")), "a range")

	from := minio.CopySrcOptions{Bucket: bucket, Object: "large"}
	must(s3.CopyObject(ctx, minio.CopyDestOptions{Bucket: bucket, Object: "copy"}, from))
	expect(bytes.Equal(read(s3, "copy"), all), "a copy")
	must(s3.ComposeObject(ctx, minio.CopyDestOptions{Bucket: bucket, Object: "twice"}, from, from))
	expect(bytes.Equal(read(s3, "twice"), append(all, all...)), "two copies in one")
	return []string{"large", "copy", "twice"}
}

// checksums uploads in parts with each kind of checksum, from a body of known length, and from
// a stream as `mc pipe` does.
func checksums(s3 *minio.Client) (keys []string) {
	body := file("large")[:2*partSize+1_000_000]
	kinds := []minio.ChecksumType{
		minio.ChecksumNone,
		minio.ChecksumCRC32,
		minio.ChecksumCRC32C,
		minio.ChecksumSHA1,
		minio.ChecksumSHA256,
		minio.ChecksumCRC64NVME,
		minio.ChecksumFullObjectCRC32,
		minio.ChecksumFullObjectCRC32C,
	}
	for _, kind := range kinds {
		for name, length := range map[string]int64{"known": int64(len(body)), "stream": -1} {
			key := strings.Join([]string{"checksums", kind.String(), name}, " ")
			if kind.FullObjectRequested() {
				key += " full"
			}
			keys = append(keys, key)
			options := minio.PutObjectOptions{PartSize: partSize, NumThreads: 2, Checksum: kind}
			var reader io.Reader = bytes.NewReader(body)
			if length < 0 {
				reader = io.MultiReader(reader)
			}
			put, err := s3.PutObject(ctx, bucket, key, reader, length, options)
			expect(err == nil, fmt.Sprint(key, ": ", err))
			expect(bytes.Equal(read(s3, key), body), key)
			stat := must(s3.StatObject(ctx, bucket, key, minio.StatObjectOptions{Checksum: true}))
			given := put.ChecksumCRC32 + put.ChecksumCRC32C + put.ChecksumSHA1 +
				put.ChecksumSHA256 + put.ChecksumCRC64NVME
			found := stat.ChecksumCRC32 + stat.ChecksumCRC32C + stat.ChecksumSHA1 +
				stat.ChecksumSHA256 + stat.ChecksumCRC64NVME
			expect(given != "" && given == found, key+": its checksum is "+found+", not "+given)
		}
	}
	return keys
}

func presigned(s3 *minio.Client) {
	web := http.Client{Transport: transport()}
	get := must(s3.PresignedGetObject(ctx, bucket, "copy", time.Hour, url.Values{}))
	answer := must(web.Get(get.String()))
	defer answer.Body.Close()
	expect(bytes.Equal(must(io.ReadAll(answer.Body)), file("large")), "a presigned GET")
	put := must(s3.PresignedPutObject(ctx, bucket, "signed", time.Hour))
	request := must(http.NewRequest("PUT", put.String(), strings.NewReader("signed")))
	expect(must(web.Do(request)).StatusCode == 200, "a presigned PUT")
	expect(string(read(s3, "signed")) == "signed", "a presigned PUT")
}

func list(s3 *minio.Client, bucket string, isRecursive bool) (names strings.Builder) {
	for object := range s3.ListObjects(ctx, bucket, minio.ListObjectsOptions{Recursive: isRecursive}) {
		check(object.Err)
		names.WriteString(object.Key + "\n")
	}
	return names
}

func remove(s3 *minio.Client, keys []string) {
	objects := make(chan minio.ObjectInfo)
	go func() {
		defer close(objects)
		for _, key := range keys {
			objects <- minio.ObjectInfo{Key: key}
		}
	}()
	for failed := range s3.RemoveObjects(ctx, bucket, objects, minio.RemoveObjectsOptions{}) {
		check(failed.Err)
	}
	_, err := s3.StatObject(ctx, bucket, "copy", minio.StatObjectOptions{})
	expect(minio.ToErrorResponse(err).Code == "NoSuchKey", "a deleted object is there")
	check(s3.RemoveBucket(ctx, bucket))
}

func main() {
	log.SetFlags(log.Lshortfile)
	endpoint := must(url.Parse(os.Getenv("AWS_ENDPOINT_URL")))
	s3 := must(minio.New(endpoint.Host, &minio.Options{
		Creds:           credentials.NewEnvAWS(),
		Secure:          endpoint.Scheme == "https",
		Region:          os.Getenv("AWS_DEFAULT_REGION"),
		BucketLookup:    minio.BucketLookupPath,
		TrailingHeaders: true,
		MaxRetries:      1,
		Transport:       transport(),
	}))
	check(s3.MakeBucket(ctx, bucket, minio.MakeBucketOptions{}))
	keys := tree(s3)
	keys = append(keys, large(s3)...)
	keys = append(keys, checksums(s3)...)
	presigned(s3)
	all, folders := list(s3, "keys", true), list(s3, "keys", false)
	expect(all.String() == string(file("keys")), "the list of keys")
	expect(folders.String() == string(file("folders")), "the list of folders")
	remove(s3, append(keys, "signed"))
}
