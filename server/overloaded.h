// One visitor of a variant from a function for each of its alternatives.

#ifndef EBB_SERVER_OVERLOADED_H_
#define EBB_SERVER_OVERLOADED_H_

namespace ebb {

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

}  // namespace ebb

#endif  // EBB_SERVER_OVERLOADED_H_
