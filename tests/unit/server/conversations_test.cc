#include "server/conversations.h"

#include <gmock/gmock.h>

#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::Eq;
using testing::Optional;

v1::Session SessionOf(const std::string& name, uint64_t generation) {
  v1::Session session;
  session.set_tenant("default");
  session.set_name("sessions/" + name);
  session.set_generation(generation);
  session.mutable_create_time()->set_seconds(5);
  return session;
}

Said AfterOne() {
  Said said;
  said.Add("user", "Hi");
  return said;
}

v1::Chat ChatOf(std::initializer_list<std::pair<const char*, const char*>> messages) {
  v1::Chat chat;
  for (const auto& [role, content] : messages) {
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role(role);
    message.set_content(content);
  }
  return chat;
}

TEST(Conversations, AreKnownAsTheyWereLeft) {
  Conversations known(10);
  EXPECT_EQ(known.Find(SessionOf("a", 1)), std::nullopt);
  known.Put(SessionOf("a", 1), 3, AfterOne());
  EXPECT_THAT(known.Find(SessionOf("a", 3)), Optional(AfterOne()));
  EXPECT_EQ(known.Find(SessionOf("a", 4)), std::nullopt) << "somebody else wrote";
  EXPECT_EQ(known.Find(SessionOf("b", 3)), std::nullopt);
  v1::Session other = SessionOf("a", 3);
  other.set_tenant("acme");
  EXPECT_EQ(known.Find(other), std::nullopt);
  other = SessionOf("a", 3);
  other.mutable_create_time()->set_seconds(6);
  EXPECT_EQ(known.Find(other), std::nullopt) << "another session of the same name";
}

TEST(Conversations, ThoseLongestUnusedAreForgotten) {
  Conversations known(2);
  known.Put(SessionOf("a", 1), 1, AfterOne());
  known.Put(SessionOf("b", 1), 1, AfterOne());
  EXPECT_TRUE(known.Find(SessionOf("a", 1)));
  known.Put(SessionOf("b", 1), 2, AfterOne());
  known.Put(SessionOf("c", 1), 1, AfterOne());
  EXPECT_FALSE(known.Find(SessionOf("a", 1)));
  EXPECT_TRUE(known.Find(SessionOf("b", 2)));
  EXPECT_TRUE(known.Find(SessionOf("c", 1)));
}

TEST(Conversations, AListHasToBeginWithWhatWasSaidAndGoOn) {
  Said had = AfterOne();
  had.Add("assistant", "Hello.");
  const auto of = [&](const v1::Chat& chat) { return MessagesHad(chat, had, "tour"); };
  const auto differs = IsRefusal(absl::StatusCode::kAborted, "CONVERSATION_DIFFERS", "messages");
  EXPECT_THAT(*of(ChatOf({{"user", "Hi"}, {"assistant", "Hello."}, {"user", "So"}})), Eq(2U));
  EXPECT_THAT(*of(ChatOf({{"user", "Hi"}, {"assistant", " Hello.\n"}, {"user", "So"}})), Eq(2U)) << "trimmed";
  EXPECT_THAT(of(ChatOf({{"user", "Hi"}, {"assistant", "Hello."}})), differs) << "nothing is new";
  EXPECT_THAT(of(ChatOf({{"user", "Hi"}})), differs);
  EXPECT_THAT(of(ChatOf({{"user", "Hi "}, {"assistant", "Hello."}, {"user", "So"}})), differs);
  EXPECT_THAT(of(ChatOf({{"user", "Hi"}, {"user", "Hello."}, {"user", "So"}})), differs);
  EXPECT_THAT(*MessagesHad(ChatOf({{"user", "Hi"}}), Said(), "tour"), Eq(0U));
  EXPECT_THAT(MessagesHad(ChatOf({{"user", "Hi"}}), std::nullopt, "tour"),
              IsRefusal(absl::StatusCode::kAborted, "CONVERSATION_UNKNOWN", "messages"));
}

}  // namespace
}  // namespace ebb
