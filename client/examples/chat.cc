// A conversation that outlives its cache. Each argument is a turn.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "client/client.h"

int main(int argc, char** argv) {
  const char* const address = std::getenv("EBB_ADDR");
  ebb::client::Client client({.address = address != nullptr ? address : "127.0.0.1:7700"});
  ebb::v1::CreateSessionRequest create;
  create.mutable_policy()->mutable_h2o();
  create.mutable_policy()->mutable_trigger()->set_budget(256);
  ebb::v1::Session session;
  grpc::Status status = client.CreateSession(create, &session);
  std::vector<std::string> turns(argv + 1, argv + argc);
  if (turns.empty()) turns = {"The lamp is in the cellar. Where is the lamp?"};
  for (size_t i = 0; i < turns.size() && status.ok(); ++i) {
    std::cout << "> " << turns[i] << std::endl;
    ebb::v1::GenerateRequest request;
    request.set_session(session.name());
    ebb::v1::ChatMessage* const message = request.mutable_prompt()->mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(turns[i]);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(48);
    ebb::v1::Usage usage;
    status = client.Generate(request, [&](const ebb::v1::GenerateResponse& answer) {
      std::cout << answer.decode().text() << std::flush;
      if (answer.decode().has_usage()) usage = answer.decode().usage();
    });
    std::cout << "\n[cache " << usage.cache_length() << " of " << usage.session_tokens() << " tokens seen]\n";
  }
  ebb::v1::DeleteSessionResponse deleted;
  if (!session.name().empty()) client.DeleteSession(session.name(), &deleted);
  if (!status.ok()) std::cerr << "chat: " << status.error_message() << std::endl;
  return status.ok() ? 0 : 1;
}
