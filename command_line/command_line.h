// Flags, subcommands and help of our programs: as much of CLI11 as they use, under its names.
//
// Nobody else includes CLI11. It is headers only: its templates and inline members would be compiled in each of some
// forty files, four seconds a file.
//
//   Program app("greet: says hello.\n", "greet");
//   std::string name = "you";
//   app.add_option("--name", name, "Whom").capture_default_str();
//   app.callback([&name] { std::printf("hello, %s\n", name.c_str()); });
//   if (const auto stopped = app.parse({argv + 1, argv + argc})) { ... }
//
// A variable that is bound to a flag must outlive the Program's parse. Mistakes of the programmer (a name twice, a flag
// that there is not) throw, and are not caught.

#ifndef EBB_COMMAND_LINE_COMMAND_LINE_H_
#define EBB_COMMAND_LINE_COMMAND_LINE_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): not our name
class App;
class Option;
}  // namespace CLI

namespace ebb {

// A command line that cannot be carried out. Callbacks throw it, and Program::parse returns what it says.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  UsageError(const std::string& flag, const std::string& what) : UsageError(flag + ": " + what) {}
};

// Handle of a flag or of a positional argument, valid as long as its Program. Each method but given() changes the flag
// and returns it.
class Flag {
 public:
  Flag required() const;
  Flag group(const std::string& name) const;  // heading in the help
  Flag type_name(const std::string& name) const;
  Flag envname(const std::string& name) const;  // the environment's variable that stands for it where it is not given
  Flag delimiter(char separator) const;         // between values in one word
  Flag expected(int values) const;
  Flag allow_extra_args(bool allow) const;  // false: one value each time that it is given, not as many as follow
  Flag default_str(const std::string& text) const;  // what the help says, whatever the variable has
  Flag capture_default_str() const;                 // the help says what the variable has now
  Flag excludes(Flag other) const;
  Flag needs(Flag other) const;

  // What its values must be; bounds are included. The help says so too.
  Flag range(int32_t least, int32_t most) const { return range(int64_t{least}, int64_t{most}); }
  Flag range(int64_t least, int64_t most) const;
  Flag range(double least, double most) const;
  Flag non_negative() const;
  Flag positive() const;
  Flag one_of(const std::vector<std::string>& words) const;
  Flag one_of(std::initializer_list<int32_t> numbers) const;
  template <typename Meant>
  Flag one_of(const std::map<std::string, Meant>& words) const {
    std::vector<std::string> keys;
    for (const auto& [word, meant] : words) keys.push_back(word);
    return one_of(keys);
  }
  // `wrong` returns what is wrong with a value, "" if nothing is; `kind` is what the help calls such values.
  Flag check(std::function<std::string(const std::string&)> wrong, const std::string& kind) const;
  // A number of bytes, also with a unit: 512MiB, 2GB; K is 1024.
  Flag bytes() const;

  // Whether the command line, or the environment, has it.
  bool given() const;

 private:
  friend class Command;
  explicit Flag(CLI::Option* option) : option_(option) {}

  CLI::Option* option_;
};

// How add_choice reads words and shows them.
struct ChoiceForm {
  bool ignore_case = true;
  bool describe = true;  // false: the help's own words list the choices
};

// Handle of a subcommand, of a group of flags, or of the program itself, valid as long as its Program.
class Command {
 public:
  Command add_subcommand(const std::string& name, const std::string& help) const;
  // Flags of this command under a heading of their own, with their own require_option.
  Command add_option_group(const std::string& name, const std::string& help) const;

  // A name without dashes is a positional argument's. Value: std::string, int32_t, uint32_t, int64_t, uint64_t, float,
  // double; of some of these also optional or vector (command_line.cc has the list).
  template <typename Value>
  Flag add_option(const std::string& name, Value& value, const std::string& help = {}) const;
  Flag add_flag(const std::string& name, bool& value, const std::string& help) const;
  Flag add_flag_callback(const std::string& name, std::function<void()> given, const std::string& help) const;
  Flag set_version_flag(const std::string& name, const std::string& version) const;
  // One of an enum's values by its word; Value is the enum, or an optional or a vector of it.
  template <typename Value, typename Enum>
  Flag add_choice(const std::string& name, Value& value, const std::map<std::string, Enum>& words,
                  const std::string& help, ChoiceForm form = {}) const;
  // REQUIRES: there is one of this name.
  Flag get_option(const std::string& name) const;

  void footer(const std::string& text) const;
  void fallthrough() const;  // its flags are also taken behind subcommands
  void require_subcommand(int count) const;
  void require_subcommand(int least, int most) const;
  void require_option(int count) const;

  // Runs when all has been parsed and this command was given. May throw UsageError.
  void callback(std::function<void()> run) const;
  // Runs after the callbacks of its subcommands. May throw UsageError.
  void final_callback(std::function<void()> run) const;
  // Name of the subcommand that was given, "" if none was.
  std::string chosen() const;

 protected:
  explicit Command(CLI::App* app) : app_(app) {}

  CLI::App* app_;

 private:
  using Codes = std::map<std::string, int64_t>;  // by their words
  // `take` gets one number, with `many` any.
  Flag AddChoice(const std::string& name, std::function<void(const std::vector<int64_t>&)> take, const Codes& words,
                 bool many, const std::string& help, ChoiceForm form) const;
};

// Why a command line was not carried out.
struct Stopped {
  bool asked = false;                      // for help or the version, which `text` is; else the line is wrong
  std::string text = {};                   // to be printed; the help and the version end with a newline
  std::vector<std::string> unread = {};    // words that are neither a flag nor an argument nor a command
  std::vector<std::string> commands = {};  // subcommands of the innermost command that was given
  bool lacks_command = false;              // one of these is needed, and none was given
};

// The program itself, with all its subcommands.
class Program : public Command {
 public:
  explicit Program(const std::string& help = {}, const std::string& name = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  // Reads arguments (without the program's name), sets the variables of flags and runs the callbacks.
  std::optional<Stopped> parse(const std::vector<std::string>& arguments);

 private:
  std::unique_ptr<CLI::App> owned_;
};

template <typename Value, typename Enum>
Flag Command::add_choice(const std::string& name, Value& value, const std::map<std::string, Enum>& words,
                         const std::string& help, ChoiceForm form) const {
  Codes codes;
  for (const auto& [word, meant] : words) codes.emplace(word, static_cast<int64_t>(meant));
  constexpr bool kMany = requires { value.push_back(Enum{}); };
  const auto take = [&value](const std::vector<int64_t>& chosen) {
    if constexpr (kMany) {
      value.clear();
      for (const int64_t code : chosen) value.push_back(static_cast<Enum>(code));
    } else {
      value = static_cast<Enum>(chosen.front());
    }
  };
  return AddChoice(name, take, codes, kMany, help, form);
}

}  // namespace ebb

#endif  // EBB_COMMAND_LINE_COMMAND_LINE_H_
