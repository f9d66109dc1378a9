// A conversation that outlives its cache. Each argument is a turn.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	ebb "ebb.example/ebb/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	ctx := context.Background()
	connection := must(grpc.Dial(os.Getenv("EBB_ADDR"), grpc.WithTransportCredentials(insecure.NewCredentials())))
	sessions, inference := ebb.NewSessionServiceClient(connection), ebb.NewInferenceServiceClient(connection)
	h2o := &ebb.PolicySpec{Scorer: &ebb.PolicySpec_H2O{H2O: &ebb.H2O{}}, Trigger: &ebb.Trigger{Size: &ebb.Trigger_Budget{Budget: 256}}}
	session := must(sessions.CreateSession(ctx, &ebb.CreateSessionRequest{Policy: h2o}))
	defer sessions.DeleteSession(ctx, &ebb.DeleteSessionRequest{Name: session.Name})
	for _, turn := range os.Args[1:] {
		fmt.Println("\n>", turn)
		chat := &ebb.Prompt_Chat{Chat: &ebb.Chat{Messages: []*ebb.ChatMessage{{Role: "user", Content: &turn}}}}
		answer := must(inference.Generate(ctx, &ebb.GenerateRequest{Session: session.Name, Prompt: &ebb.Prompt{Content: chat}}))
		for message, err := answer.Recv(); err != io.EOF; message, err = answer.Recv() {
			fmt.Print(must(message, err).GetDecode().GetText())
		}
	}
}
func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
