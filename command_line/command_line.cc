#include "command_line/command_line.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace ebb {
namespace {

// Makes a word its number.
CLI::Validator ChoiceOf(const std::map<std::string, int64_t>& words, ChoiceForm form) {
  CLI::Validator choice =
      form.ignore_case ? CLI::CheckedTransformer(words, CLI::ignore_case) : CLI::CheckedTransformer(words);
  return form.describe ? choice : choice.description("");
}

Stopped Describe(const CLI::App& app, bool asked, std::string text) {
  Stopped stopped = {.asked = asked, .text = std::move(text), .unread = app.remaining(true)};
  const CLI::App* innermost = &app;
  while (!innermost->get_subcommands().empty()) innermost = innermost->get_subcommands().back();
  for (const CLI::App* command : innermost->get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_name().empty()) stopped.commands.push_back(command->get_name());  // a group of flags has none
  }
  return stopped;
}

}  // namespace

Flag Flag::required() const { return Flag(option_->required()); }
Flag Flag::group(const std::string& name) const { return Flag(option_->group(name)); }
Flag Flag::type_name(const std::string& name) const { return Flag(option_->type_name(name)); }
Flag Flag::envname(const std::string& name) const { return Flag(option_->envname(name)); }
Flag Flag::delimiter(char separator) const { return Flag(option_->delimiter(separator)); }
Flag Flag::expected(int values) const { return Flag(option_->expected(values)); }
Flag Flag::allow_extra_args(bool allow) const { return Flag(option_->allow_extra_args(allow)); }
Flag Flag::default_str(const std::string& text) const { return Flag(option_->default_str(text)); }
Flag Flag::capture_default_str() const { return Flag(option_->capture_default_str()); }
Flag Flag::excludes(Flag other) const { return Flag(option_->excludes(other.option_)); }
Flag Flag::needs(Flag other) const { return Flag(option_->needs(other.option_)); }

Flag Flag::range(int64_t least, int64_t most) const { return Flag(option_->check(CLI::Range(least, most))); }
Flag Flag::range(double least, double most) const { return Flag(option_->check(CLI::Range(least, most))); }
Flag Flag::non_negative() const { return Flag(option_->check(CLI::NonNegativeNumber)); }
Flag Flag::positive() const { return Flag(option_->check(CLI::PositiveNumber)); }
Flag Flag::one_of(const std::vector<std::string>& words) const { return Flag(option_->check(CLI::IsMember(words))); }
Flag Flag::one_of(std::initializer_list<int32_t> numbers) const {
  return Flag(option_->check(CLI::IsMember(std::vector<int32_t>(numbers))));
}
Flag Flag::check(std::function<std::string(const std::string&)> wrong, const std::string& kind) const {
  return Flag(option_->check(std::move(wrong), kind));
}
Flag Flag::bytes() const { return Flag(option_->transform(CLI::AsSizeValue(false))); }

bool Flag::given() const { return option_->count() > 0; }

Command Command::add_subcommand(const std::string& name, const std::string& help) const {
  return Command(app_->add_subcommand(name, help));
}

Command Command::add_option_group(const std::string& name, const std::string& help) const {
  return Command(app_->add_option_group(name, help));
}

template <typename Value>
Flag Command::add_option(const std::string& name, Value& value, const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}

#define EBB_OPTION(...) \
  template Flag Command::add_option(const std::string& name, __VA_ARGS__& value, const std::string& help) const
EBB_OPTION(std::string);
EBB_OPTION(int32_t);
EBB_OPTION(uint32_t);
EBB_OPTION(int64_t);
EBB_OPTION(uint64_t);
EBB_OPTION(float);
EBB_OPTION(double);
EBB_OPTION(std::optional<uint32_t>);
EBB_OPTION(std::optional<uint64_t>);
EBB_OPTION(std::optional<float>);
EBB_OPTION(std::optional<double>);
EBB_OPTION(std::vector<std::string>);
EBB_OPTION(std::vector<int32_t>);
EBB_OPTION(std::vector<uint32_t>);
EBB_OPTION(std::vector<uint64_t>);
EBB_OPTION(std::vector<double>);
#undef EBB_OPTION

Flag Command::add_flag(const std::string& name, bool& value, const std::string& help) const {
  return Flag(app_->add_flag(name, value, help));
}

Flag Command::add_flag_callback(const std::string& name, std::function<void()> given, const std::string& help) const {
  return Flag(app_->add_flag_callback(name, std::move(given), help));
}

Flag Command::set_version_flag(const std::string& name, const std::string& version) const {
  return Flag(app_->set_version_flag(name, version));
}

Flag Command::get_option(const std::string& name) const { return Flag(app_->get_option(name)); }

void Command::footer(const std::string& text) const { app_->footer(text); }
void Command::fallthrough() const { app_->fallthrough(); }
void Command::require_subcommand(int count) const { app_->require_subcommand(count); }
void Command::require_subcommand(int least, int most) const {
  app_->require_subcommand(static_cast<size_t>(least), static_cast<size_t>(most));
}
void Command::require_option(int count) const { app_->require_option(count); }

void Command::callback(std::function<void()> run) const { app_->callback(std::move(run)); }
void Command::final_callback(std::function<void()> run) const { app_->final_callback(std::move(run)); }

std::string Command::chosen() const {
  const std::vector<CLI::App*> given = app_->get_subcommands();
  return given.empty() ? std::string() : given.front()->get_name();
}

Flag Command::AddChoice(const std::string& name, std::function<void(const std::vector<int64_t>&)> take,
                        const Codes& words, bool many, const std::string& help, ChoiceForm form) const {
  const auto read = [take = std::move(take)](const std::vector<std::string>& numbers) {  // as ChoiceOf left them
    std::vector<int64_t> codes;
    for (const std::string& number : numbers) codes.push_back(std::stoll(number));
    take(codes);
    return true;
  };
  CLI::Option* const option = app_->add_option(name, read, help)->type_name("ENUM");
  if (many) option->expected(CLI::detail::expected_max_vector_size);
  return Flag(option->transform(ChoiceOf(words, form)));
}

Program::Program(const std::string& help, const std::string& name)
    : Command(nullptr), owned_(std::make_unique<CLI::App>(help, name)) {
  app_ = owned_.get();
}

Program::~Program() = default;

std::optional<Stopped> Program::parse(const std::vector<std::string>& arguments) {
  std::vector<std::string> last_first(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
  try {
    app_->parse(std::move(last_first));
  } catch (const CLI::CallForHelp&) {
    return Describe(*app_, true, app_->help());
  } catch (const CLI::CallForVersion& version) {
    return Describe(*app_, true, std::string(version.what()) + "\n");
  } catch (const CLI::ParseError& error) {
    Stopped stopped = Describe(*app_, false, error.what());
    stopped.lacks_command = stopped.text == CLI::RequiredError::Subcommand(1).what();
    return stopped;
  } catch (const UsageError& error) {
    return Describe(*app_, false, error.what());
  }
  return std::nullopt;
}

}  // namespace ebb
