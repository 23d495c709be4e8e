// The requests of Terraform's AWS provider for an aws_s3_bucket and the resources beside it: a
// bucket is made, and each of its configurations is read. The provider knows by an error's code
// that a bucket has none. It takes any other error for a failure, apart from those by which
// older servers say that they do not serve a request; S3 has an answer to each.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

var (
	ctx    = context.Background()
	bucket = aws.String(os.Getenv("BUCKET"))
)

// configuration is one that the provider reads.
type configuration struct {
	name string
	// absent is the error code for a bucket without it, if S3 has one.
	absent string
	// read returns whether the answer is S3's default for new buckets. S3 has both a default
	// and a code where the default came later.
	read func(*s3.Client) (isDefault bool, err error)
}

var configurations = []configuration{
	{"policy", "NoSuchBucketPolicy", func(c *s3.Client) (bool, error) {
		_, err := c.GetBucketPolicy(ctx, &s3.GetBucketPolicyInput{Bucket: bucket})
		return false, err
	}},
	{"acl", "", func(c *s3.Client) (bool, error) {
		is, err := c.GetBucketAcl(ctx, &s3.GetBucketAclInput{Bucket: bucket})
		if err != nil {
			return false, err
		}
		isOwners := len(is.Grants) == 1 && is.Grants[0].Permission == types.PermissionFullControl &&
			aws.ToString(is.Grants[0].Grantee.ID) == aws.ToString(is.Owner.ID)
		return isOwners && aws.ToString(is.Owner.ID) != "", nil
	}},
	{"cors", "NoSuchCORSConfiguration", func(c *s3.Client) (bool, error) {
		_, err := c.GetBucketCors(ctx, &s3.GetBucketCorsInput{Bucket: bucket})
		return false, err
	}},
	{"website", "NoSuchWebsiteConfiguration", func(c *s3.Client) (bool, error) {
		_, err := c.GetBucketWebsite(ctx, &s3.GetBucketWebsiteInput{Bucket: bucket})
		return false, err
	}},
	{"versioning", "", func(c *s3.Client) (bool, error) {
		is, err := c.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: bucket})
		return err == nil && is.Status == "" && is.MFADelete == "", err
	}},
	{"acceleration", "", func(c *s3.Client) (bool, error) {
		input := &s3.GetBucketAccelerateConfigurationInput{Bucket: bucket}
		is, err := c.GetBucketAccelerateConfiguration(ctx, input)
		return err == nil && is.Status == "", err
	}},
	{"request payment", "", func(c *s3.Client) (bool, error) {
		is, err := c.GetBucketRequestPayment(ctx, &s3.GetBucketRequestPaymentInput{Bucket: bucket})
		return err == nil && is.Payer == types.PayerBucketOwner, err
	}},
	{"logging", "", func(c *s3.Client) (bool, error) {
		is, err := c.GetBucketLogging(ctx, &s3.GetBucketLoggingInput{Bucket: bucket})
		return err == nil && is.LoggingEnabled == nil, err
	}},
	{"lifecycle", "NoSuchLifecycleConfiguration", func(c *s3.Client) (bool, error) {
		input := &s3.GetBucketLifecycleConfigurationInput{Bucket: bucket}
		_, err := c.GetBucketLifecycleConfiguration(ctx, input)
		return false, err
	}},
	{"replication", "ReplicationConfigurationNotFoundError", func(c *s3.Client) (bool, error) {
		_, err := c.GetBucketReplication(ctx, &s3.GetBucketReplicationInput{Bucket: bucket})
		return false, err
	}},
	{"encryption", "ServerSideEncryptionConfigurationNotFoundError", func(c *s3.Client) (bool, error) {
		is, err := c.GetBucketEncryption(ctx, &s3.GetBucketEncryptionInput{Bucket: bucket})
		return err == nil && len(is.ServerSideEncryptionConfiguration.Rules) == 1, err
	}},
	{"object lock", "ObjectLockConfigurationNotFoundError", func(c *s3.Client) (bool, error) {
		_, err := c.GetObjectLockConfiguration(ctx, &s3.GetObjectLockConfigurationInput{Bucket: bucket})
		return false, err
	}},
	{"tagging", "NoSuchTagSet", func(c *s3.Client) (bool, error) {
		_, err := c.GetBucketTagging(ctx, &s3.GetBucketTaggingInput{Bucket: bucket})
		return false, err
	}},
	{"ownership controls", "OwnershipControlsNotFoundError", func(c *s3.Client) (bool, error) {
		is, err := c.GetBucketOwnershipControls(ctx, &s3.GetBucketOwnershipControlsInput{Bucket: bucket})
		return err == nil && len(is.OwnershipControls.Rules) == 1, err
	}},
	{"public access block", "NoSuchPublicAccessBlockConfiguration", func(c *s3.Client) (bool, error) {
		is, err := c.GetPublicAccessBlock(ctx, &s3.GetPublicAccessBlockInput{Bucket: bucket})
		return err == nil && aws.ToBool(is.PublicAccessBlockConfiguration.BlockPublicAcls), err
	}},
	{"notifications", "", func(c *s3.Client) (bool, error) {
		input := &s3.GetBucketNotificationConfigurationInput{Bucket: bucket}
		is, err := c.GetBucketNotificationConfiguration(ctx, input)
		return err == nil && len(is.QueueConfigurations) == 0, err
	}},
}

func code(err error) string {
	var known smithy.APIError
	if errors.As(err, &known) {
		return known.ErrorCode()
	}
	return ""
}

func check(err error) {
	if err != nil {
		log.Output(2, err.Error())
		os.Exit(1)
	}
}

// readAll reads all configurations of a bucket that has none, and returns the number of faults.
func readAll(client *s3.Client) (faults int) {
	for _, one := range configurations {
		isDefault, err := one.read(client)
		isAbsent := one.absent != "" && code(err) == one.absent
		if !isDefault && !isAbsent {
			faults++
			log.Printf("%s: default %t, %v; S3: %q", one.name, isDefault, err, one.absent)
		}
	}
	return faults
}

// change sets what the provider sets beside a bucket, and waits until it reads that back.
func change(client *s3.Client) {
	_, err := client.PutBucketVersioning(ctx, &s3.PutBucketVersioningInput{
		Bucket:                  bucket,
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	})
	check(err)
	_, err = client.PutBucketCors(ctx, &s3.PutBucketCorsInput{
		Bucket: bucket,
		CORSConfiguration: &types.CORSConfiguration{CORSRules: []types.CORSRule{{
			AllowedMethods: []string{"GET"},
			AllowedOrigins: []string{"*"},
		}}},
	})
	check(err)
	for range 50 {
		versioning, err := client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: bucket})
		check(err)
		cors, err := client.GetBucketCors(ctx, &s3.GetBucketCorsInput{Bucket: bucket})
		isSet := err == nil && len(cors.CORSRules) == 1
		if isSet && versioning.Status == types.BucketVersioningStatusEnabled {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	log.Fatal("what was set is not read back")
}

func main() {
	log.SetFlags(log.Lshortfile)
	loaded, err := config.LoadDefaultConfig(ctx, config.WithRetryMaxAttempts(1))
	check(err)
	client := s3.NewFromConfig(loaded, func(options *s3.Options) {
		options.UsePathStyle = true
		options.BaseEndpoint = aws.String(os.Getenv("AWS_ENDPOINT_URL"))
	})

	_, err = client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: bucket})
	if code(err) != "NotFound" {
		log.Fatalf("a bucket that does not exist: %v", err)
	}
	_, err = client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: bucket})
	check(err)
	head, err := client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: bucket})
	check(err)
	if aws.ToString(head.BucketRegion) != loaded.Region {
		log.Fatalf("the region is %q", aws.ToString(head.BucketRegion))
	}
	location, err := client.GetBucketLocation(ctx, &s3.GetBucketLocationInput{Bucket: bucket})
	check(err)
	if is := string(location.LocationConstraint); is != loaded.Region && (is != "" || loaded.Region != "us-east-1") {
		log.Fatalf("the location is %q", is)
	}
	faults := readAll(client)
	change(client)
	_, err = client.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: bucket})
	check(err)
	if faults > 0 {
		log.Fatalf("%d configurations are not read as those of S3", faults)
	}
}
