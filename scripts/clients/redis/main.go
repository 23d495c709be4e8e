// Clients of the key-value server of tools/kv: redis ADDRESS CLIENTS ROUNDS. Each client has
// one connection of go-redis, and reads in each round what it has written.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"
)

var sizes = []int{10, 1000, 16 << 10, 100 << 10}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func client(address string, n, rounds int) error {
	ctx := context.Background()
	db := redis.NewClient(&redis.Options{Addr: address, PoolSize: 1, MaxRetries: -1})
	defer db.Close()
	key := fmt.Sprintf("go %d", n)
	for round := 0; round < rounds; round++ {
		value := bytes.Repeat([]byte{byte('a' + round%26)}, sizes[(n+round)%len(sizes)])
		if err := db.Set(ctx, key, value, 0).Err(); err != nil {
			return fmt.Errorf("SET in round %d: %w", round, err)
		}
		read, err := db.Get(ctx, key).Bytes()
		if err != nil {
			return fmt.Errorf("GET in round %d: %w", round, err)
		}
		if !bytes.Equal(read, value) {
			return fmt.Errorf("round %d: another value of %d bytes", round, len(read))
		}
	}
	return db.Del(ctx, key).Err()
}

func main() {
	address, count, rounds := os.Args[1], number(os.Args[2]), number(os.Args[3])
	var all sync.WaitGroup
	for n := 0; n < count; n++ {
		all.Add(1)
		go func(n int) {
			defer all.Done()
			if err := client(address, n, rounds); err != nil {
				log.Fatalf("client %d: %v", n, err)
			}
		}(n)
	}
	all.Wait()
	fmt.Printf("%d clients have read what they wrote\n", count)
}
