# What bash runs before each command of a shell (shell_server.py): take the state over, prepare to write it down.
# Descriptor 251 has the state (four parts) and the command, each ended by a zero byte. To 250 goes the text of the two
# functions below, and then the new state: variables, functions and the like, options, working directory, the word END.
# A line from 252 says that the limits hold.
{
  read -r -u 252 __shell_script
  IFS= read -r -d '' -u 251 __shell_script
  IFS= read -r -d '' -u 251 __shell_options
  IFS= read -r -d '' -u 251 __shell_cwd
  IFS= read -r -d '' -u 251 __shell_status
  IFS= read -r -d '' -u 251 __shell_command
  exec 251<&- 252<&-
}
__shell_shopts=$BASHOPTS
umask 022
__shell_return() { builtin return "$1"; }
# An EXIT trap of the command takes the place of the one below, and runs after this.
exit() {
  {
    __shell_status=$?
    if [[ -z ${__shell_saved-} && $BASHPID == "$$" ]]; then
      __shell_flags=${-//[^eufC]/}
      __shell_save "$SHELLOPTS"
      [[ -z $__shell_flags ]] || builtin set "-$__shell_flags"
    fi
    builtin set +x
  } 2>/dev/null
  (($#)) || __shell_return "$__shell_status"
  builtin exit "$@"
}
{ declare -f __shell_return; printf '\0'; declare -f exit; printf '\0'; } >&250
{ eval "$__shell_script"; builtin unset __shell_script; } 2>/dev/null
if ! { builtin cd -- "$__shell_cwd"; } 2>/dev/null; then
  builtin printf 'bash: the working directory %s is not there any more\n' "$__shell_cwd" >&2
  { builtin cd /project || builtin cd /; } 2>/dev/null
fi
__shell_save() {
  __shell_saved=1
  builtin set +euxfC
  builtin trap - DEBUG ERR RETURN
  builtin unset -f __shell_save
  {
    builtin declare -p
    builtin printf '\0'
    [[ $BASHOPTS == "$__shell_shopts" ]] || builtin shopt -p  # a function's text may need extglob
    builtin umask -p
    builtin declare -f
    builtin declare -Fx
    builtin alias -p
    builtin printf '\0%s\0%s\0END\0' "$1" "$PWD"
  } >&250
}
trap '{ [[ ${__shell_saved-} ]] || __shell_save "$SHELLOPTS"; } 2>/dev/null' EXIT
RANDOM=$SOURCE_DATE_EPOCH
